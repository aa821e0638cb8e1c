/* The loops of asyncps_ext.quantize and their table; included once for each variant
 * (each_variant.h).
 */

#include "quantize_bits.h"
#include "quantize_values.h"
#include "quantize_scan.h"

static const aps_quantize_table APS_FN(table) = {
    APS_VARIANT,
    APS_FN(count_nonfinite), APS_FN(first_nonfinite), APS_FN(largest),
    APS_FN(encode_2bit), APS_FN(encode_1bit), APS_FN(encode_onebit),
    APS_FN(encode_f16), APS_FN(encode_bf16),
    APS_FN(decode_2bit), APS_FN(add_2bit), APS_FN(decode_signs), APS_FN(add_signs),
    APS_FN(onebit_prepare),
    APS_FN(encode_int8), APS_FN(decode_int8), APS_FN(add_int8),
};
