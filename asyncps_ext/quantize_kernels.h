/* Kernels of asyncps_ext.quantize: what each is given, the variants and the choice of one.
 *
 * Every encoder works on x = g + residual and leaves x - (what was sent) in residual; with residual
 * NULL on x = g, of which nothing is kept. Vector code takes whole turns, plain code the rest (or,
 * in the baseline, all), and both give the same bytes: the arithmetic of an element is the same.
 */
#ifndef ASYNCPS_QUANTIZE_KERNELS_H
#define ASYNCPS_QUANTIZE_KERNELS_H

#include <math.h>

#include "halves.h"

typedef ptrdiff_t (*aps_scan)(const aps_f32 *x, const aps_f32 *residual, ptrdiff_t n);
typedef float (*aps_measure)(const aps_f32 *x, ptrdiff_t n);
typedef void (*aps_encode)(uint8_t *payload, aps_f32 *residual, const aps_f32 *g, float value,
                           ptrdiff_t n);
typedef void (*aps_decode)(aps_f32 *out, const uint8_t *payload, float value, ptrdiff_t n);
typedef double (*aps_prepare)(aps_f32 *residual, const aps_f32 *g, ptrdiff_t n);
typedef void (*aps_encode_blocks)(aps_i8 *payload, aps_f32 *scales, aps_f32 *residual,
                                  const aps_f32 *g, ptrdiff_t n);
typedef void (*aps_decode_blocks)(aps_f32 *out, const aps_i8 *payload, const aps_f32 *scales,
                                  ptrdiff_t n);

typedef struct {
    const char *name;
    aps_scan count_nonfinite, first_nonfinite;
    aps_measure largest;
    aps_encode encode_2bit, encode_1bit, encode_onebit, encode_f16, encode_bf16;
    aps_decode decode_2bit, add_2bit, decode_signs, add_signs;
    aps_prepare onebit_prepare;
    aps_encode_blocks encode_int8;
    aps_decode_blocks decode_int8, add_int8;
} aps_quantize_table;

/* Values that share a scale; part of the format. */
#define APS_BLOCK 256

/* Times 127 it is finite still; the next float is not, and is what the largest float / 127 is. */
#define APS_MOST_SCALE 0x1.020406p+121f

#define APS_NONFINITE 0x7f800000u /* the least bits of a magnitude that is not finite */

enum { APS_DECODE, APS_ADD };

/* One NaN for all among values that are kept. Loops look whether there is one at all, which is rare
 * and cheaper than to choose for each value.
 */
static APS_UNUSED void aps_make_one_nan(aps_f32 *values, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++)
        if (values[i] != values[i])
            values[i] = aps_as_f32(APS_NAN);
}

/* There is a residual or none: each loop is compiled for both. */
#define APS_BOTH(name, residual, ...) \
    ((residual) != NULL ? APS_FN(name)(__VA_ARGS__, 1) : APS_FN(name)(__VA_ARGS__, 0))

#define APS_BODY "quantize_variant.h"
#include "each_variant.h"

static const aps_quantize_table *aps_quantize_table_at(int i)
{
    static const aps_quantize_table *const tables[] = APS_TABLES;
    return APS_TABLE_AT(tables, i);
}

#endif
