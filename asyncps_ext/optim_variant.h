/* All update kernels of both real types, and their table; included once for each variant
 * (each_variant.h).
 */

#define APS_OF(name) APS_JOIN(APS_FN(f32_), name)
#define APS_REAL float
#define APS_ELEM aps_f32
#define APS_SQRT sqrtf
#include "optim_body.h"
#undef APS_OF
#undef APS_REAL
#undef APS_ELEM
#undef APS_SQRT

#define APS_OF(name) APS_JOIN(APS_FN(f64_), name)
#define APS_REAL double
#define APS_ELEM aps_f64
#define APS_SQRT sqrt
#include "optim_body.h"
#undef APS_OF
#undef APS_REAL
#undef APS_ELEM
#undef APS_SQRT

/* Integers wrap: unsigned arithmetic, with the factor reduced to the type's width first. */
#define APS_TEST(name, T, U)                                                                 \
    APS_TARGET static void APS_FN(name)(const aps_optim_args *a)                           \
    {                                                                                        \
        T *out = (T *)a->out;                                                                \
        const T *w = (const T *)a->w, *g = (const T *)a->g;                                  \
        const U rescale = (U)a->factor;                                                      \
        const ptrdiff_t n = a->n;                                                            \
        APS_INDEPENDENT                                                                      \
        for (ptrdiff_t i = 0; i < n; i++)                                                    \
            out[i] = (U)(w[i] + rescale * g[i]);                                             \
    }

APS_TEST(test_u8, aps_u8, uint8_t)
APS_TEST(test_u32, aps_u32, uint32_t)
APS_TEST(test_u64, aps_u64, uint64_t)
#undef APS_TEST

static const aps_optim_table APS_FN(table) = {
    APS_VARIANT,
    { APS_FN(f32_test), APS_FN(f64_test), APS_FN(test_u8), APS_FN(test_u8),
      APS_FN(test_u32), APS_FN(test_u64) },
    { APS_FN(f32_sgd), APS_FN(f64_sgd) },
    { APS_FN(f32_sgd_momentum), APS_FN(f64_sgd_momentum) },
    { APS_FN(f32_adam), APS_FN(f64_adam) },
    { APS_FN(f32_adamw), APS_FN(f64_adamw) },
    { APS_FN(f32_lamb_direction), APS_FN(f64_lamb_direction) },
    { APS_FN(f32_adagrad), APS_FN(f64_adagrad) },
    { APS_FN(f32_rmsprop), APS_FN(f64_rmsprop) },
    { APS_FN(f32_rmsprop_centered), APS_FN(f64_rmsprop_centered) },
    { APS_FN(f32_ftrl), APS_FN(f64_ftrl) },
    { APS_FN(f32_squares), APS_FN(f64_squares) },
};
