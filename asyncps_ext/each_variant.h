/* Includes APS_BODY once for each variant, with these set:
 *
 * APS_TARGET     attributes of its functions
 * APS_FN(name)   the name of a function
 * APS_VARIANT    the name that is told
 * APS_VECTORS    1: there are the instructions of AVX2 and F16C; 2: and those of AVX-512
 *
 * No include guard: once for each kernel header.
 */

#define APS_TARGET
#define APS_FN(name) APS_JOIN(aps_baseline_, name)
#define APS_VARIANT "baseline"
#define APS_VECTORS 0
#include APS_BODY
#undef APS_TARGET
#undef APS_FN
#undef APS_VARIANT
#undef APS_VECTORS

#if APS_HAVE_LEVELS
#define APS_TARGET __attribute__((target("arch=x86-64-v3")))
#define APS_FN(name) APS_JOIN(aps_v3_, name)
#define APS_VARIANT "x86-64-v3"
#define APS_VECTORS 1
#include APS_BODY
#undef APS_TARGET
#undef APS_FN
#undef APS_VARIANT
#undef APS_VECTORS

#define APS_TARGET __attribute__((target("arch=x86-64-v4")))
#define APS_FN(name) APS_JOIN(aps_v4_, name)
#define APS_VARIANT "x86-64-v4"
#define APS_VECTORS 2
#include APS_BODY
#undef APS_TARGET
#undef APS_FN
#undef APS_VARIANT
#undef APS_VECTORS
#endif

#undef APS_BODY
