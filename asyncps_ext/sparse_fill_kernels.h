/* Kernels of asyncps_ext.sparse_fill: random rows by counter, the variants, the choice of one. */
#ifndef ASYNCPS_SPARSE_FILL_KERNELS_H
#define ASYNCPS_SPARSE_FILL_KERNELS_H

#include <math.h>

#include "variants.h"

typedef void (*aps_fill)(void *out, int wide, const aps_i64 *ids, ptrdiff_t n, ptrdiff_t width,
                         uint64_t key, double scale);

typedef struct {
    const char *name;
    aps_fill uniform, normal;
} aps_fill_table;

/* Numbers are made and shaped this many at a time. */
#define APS_STRIP 512

/* The inverse of the normal distribution (P. J. Acklam, 2003): rational in the middle and, by
 * sqrt(-2 log p), in the tails; relative error below 1.2e-9. Written with +, -, *, / and sqrt only,
 * each of which has one right answer, so that all machines and NumPy give the same bits.
 */
#define APS_TAIL 0.02425

static APS_INLINE double aps_middle(double q)
{
    const double r = q * q;
    const double above = (((((-3.969683028665376e+01 * r + 2.209460984245205e+02) * r
        + -2.759285104469687e+02) * r + 1.383577518672690e+02) * r
        + -3.066479806614716e+01) * r + 2.506628277459239e+00) * q;
    const double below = ((((-5.447609879822406e+01 * r + 1.615858368580409e+02) * r
        + -1.556989798598866e+02) * r + 6.680131188771972e+01) * r
        + -1.328068155288572e+01) * r + 1.0;
    return above / below;
}

/* log p of a normal number: of the mantissa by the series of atanh, which ends at 1e-16 here. */
static APS_INLINE double aps_log(double p)
{
    uint64_t bits;
    memcpy(&bits, &p, sizeof bits);
    double exponent = (double)((int64_t)(bits >> 52) - 1023);
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m = m * 0.5;
        exponent = exponent + 1.0;
    }
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double sum = 1.0 / 19.0;
    sum = sum * z + 1.0 / 17.0;
    sum = sum * z + 1.0 / 15.0;
    sum = sum * z + 1.0 / 13.0;
    sum = sum * z + 1.0 / 11.0;
    sum = sum * z + 1.0 / 9.0;
    sum = sum * z + 1.0 / 7.0;
    sum = sum * z + 1.0 / 5.0;
    sum = sum * z + 1.0 / 3.0;
    sum = sum * z + 1.0;
    return exponent * 0.6931471805599453 + 2.0 * s * sum;
}

/* Of the lower tail; the upper one is its mirror. */
static APS_INLINE double aps_tail(double p)
{
    const double t = sqrt(-2.0 * aps_log(p));
    const double above = ((((-7.784894002430293e-03 * t + -3.223964580411365e-01) * t
        + -2.400758277161838e+00) * t + -2.549732539343734e+00) * t
        + 4.374664141464968e+00) * t + 2.938163982698783e+00;
    const double below = (((7.784695709041462e-03 * t + 3.224671290700398e-01) * t
        + 2.445134137142996e+00) * t + 3.754408661907416e+00) * t + 1.0;
    return above / below;
}

#define APS_BODY "sparse_fill_body.h"
#include "each_variant.h"

static const aps_fill_table *aps_fill_table_at(int i)
{
    static const aps_fill_table *const tables[] = APS_TABLES;
    return APS_TABLE_AT(tables, i);
}

#endif
