/* The update loops of asyncps_ext.optim; included once for each variant and each real type by
 * optim_variant.h, which sets APS_OF(name), APS_REAL (arithmetic), APS_ELEM (in memory) and
 * APS_SQRT. Hyper-parameters are rounded to APS_REAL once; nothing is reassociated.
 */

/* NaN passes: both comparisons are false. */
APS_TARGET static APS_INLINE APS_REAL APS_OF(bound)(APS_REAL x, APS_REAL limit)
{
    x = x > limit ? limit : x;
    return x < -limit ? -limit : x;
}

APS_TARGET static void APS_OF(test)(const aps_optim_args *a)
{
    APS_ELEM *out = (APS_ELEM *)a->out;
    const APS_ELEM *w = (const APS_ELEM *)a->w, *g = (const APS_ELEM *)a->g;
    const APS_REAL rescale = (APS_REAL)a->rescale;
    const ptrdiff_t n = a->n;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++)
        out[i] = w[i] + rescale * g[i];
}

APS_TARGET static APS_INLINE void APS_OF(sgd_loop)(const aps_optim_args *a, const int clipped)
{
    APS_ELEM *out = (APS_ELEM *)a->out;
    const APS_ELEM *w = (const APS_ELEM *)a->w, *g = (const APS_ELEM *)a->g;
    const APS_REAL lr = (APS_REAL)a->lr, wd = (APS_REAL)a->wd;
    const APS_REAL rescale = (APS_REAL)a->rescale, clip = (APS_REAL)a->clip;
    const ptrdiff_t n = a->n;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++) {
        APS_REAL grad = rescale * g[i];
        if (clipped)
            grad = APS_OF(bound)(grad, clip);
        grad = grad + wd * w[i];
        out[i] = w[i] - lr * grad;
    }
}

APS_TARGET static void APS_OF(sgd)(const aps_optim_args *a)
{
    if (a->clip >= 0)
        APS_OF(sgd_loop)(a, 1);
    else
        APS_OF(sgd_loop)(a, 0);
}

APS_TARGET static APS_INLINE void APS_OF(momentum_loop)(const aps_optim_args *a,
                                                        const int clipped, const int nesterov)
{
    APS_ELEM *out = (APS_ELEM *)a->out, *m = (APS_ELEM *)a->m;
    const APS_ELEM *w = (const APS_ELEM *)a->w, *g = (const APS_ELEM *)a->g;
    const APS_REAL lr = (APS_REAL)a->lr, wd = (APS_REAL)a->wd;
    const APS_REAL rescale = (APS_REAL)a->rescale, clip = (APS_REAL)a->clip;
    const APS_REAL momentum = (APS_REAL)a->momentum, ahead = momentum + (APS_REAL)1;
    const ptrdiff_t n = a->n;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++) {
        APS_REAL grad = rescale * g[i];
        if (clipped)
            grad = APS_OF(bound)(grad, clip);
        const APS_REAL weight = w[i];
        const APS_REAL kept = momentum * m[i];
        const APS_REAL moved = kept - lr * (grad + wd * weight);
        const APS_REAL next = nesterov ? (weight - kept) + ahead * moved : weight + moved;
        m[i] = nesterov ? kept - lr * (grad + wd * next) : moved;
        out[i] = next;
    }
}

APS_TARGET static void APS_OF(sgd_momentum)(const aps_optim_args *a)
{
    if (a->clip >= 0 && a->nesterov)
        APS_OF(momentum_loop)(a, 1, 1);
    else if (a->clip >= 0)
        APS_OF(momentum_loop)(a, 1, 0);
    else if (a->nesterov)
        APS_OF(momentum_loop)(a, 0, 1);
    else
        APS_OF(momentum_loop)(a, 0, 0);
}

/* Steps with Adam's moments. Adam decays the gradient, before the clip; AdamW the weights; LAMB's
 * out is the direction of its step, whose length is not known yet. */
APS_TARGET static APS_INLINE void APS_OF(moments_loop)(const aps_optim_args *a, const int clipped,
                                                       const int kind)
{
    APS_ELEM *out = (APS_ELEM *)a->out, *m = (APS_ELEM *)a->m, *v = (APS_ELEM *)a->v;
    const APS_ELEM *w = (const APS_ELEM *)a->w, *g = (const APS_ELEM *)a->g;
    const APS_REAL lr = (APS_REAL)a->lr, wd = (APS_REAL)a->wd, eps = (APS_REAL)a->eps;
    const APS_REAL rescale = (APS_REAL)a->rescale, clip = (APS_REAL)a->clip;
    const APS_REAL eta = (APS_REAL)a->eta;
    const APS_REAL fix1 = (APS_REAL)a->fix1, fix2 = (APS_REAL)a->fix2;
    const APS_REAL beta1 = (APS_REAL)a->beta1, rest1 = (APS_REAL)1 - beta1;
    const APS_REAL beta2 = (APS_REAL)a->beta2, rest2 = (APS_REAL)1 - beta2;
    const ptrdiff_t n = a->n;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++) {
        const APS_REAL weight = w[i];
        APS_REAL grad = rescale * g[i];
        if (kind == APS_ADAM)
            grad = grad + wd * weight;
        if (clipped)
            grad = APS_OF(bound)(grad, clip);
        const APS_REAL mean = beta1 * m[i] + rest1 * grad;
        const APS_REAL variance = beta2 * v[i] + rest2 * grad * grad;
        m[i] = mean;
        v[i] = variance;
        if (kind == APS_ADAM)
            out[i] = weight - lr * mean / (APS_SQRT(variance) + eps);
        else if (kind == APS_ADAMW)
            out[i] = weight - eta * (lr * mean / (APS_SQRT(variance) + eps) + wd * weight);
        else
            out[i] = mean / fix1 / (APS_SQRT(variance / fix2) + eps) + wd * weight;
    }
}

APS_TARGET static void APS_OF(adam)(const aps_optim_args *a)
{
    if (a->clip >= 0)
        APS_OF(moments_loop)(a, 1, APS_ADAM);
    else
        APS_OF(moments_loop)(a, 0, APS_ADAM);
}

APS_TARGET static void APS_OF(adamw)(const aps_optim_args *a)
{
    if (a->clip >= 0)
        APS_OF(moments_loop)(a, 1, APS_ADAMW);
    else
        APS_OF(moments_loop)(a, 0, APS_ADAMW);
}

APS_TARGET static void APS_OF(lamb_direction)(const aps_optim_args *a)
{
    if (a->clip >= 0)
        APS_OF(moments_loop)(a, 1, APS_LAMB);
    else
        APS_OF(moments_loop)(a, 0, APS_LAMB);
}

/* Eight partial sums, in every variant the same: vector code may hold them in one register or in
 * four. */
APS_TARGET static double APS_OF(squares)(const void *given, ptrdiff_t n)
{
    const APS_ELEM *x = (const APS_ELEM *)given;
    double s[8] = {0};
    ptrdiff_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int lane = 0; lane < 8; lane++) {
            const double value = x[i + lane];
            s[lane] += value * value;
        }
    for (; i < n; i++) {
        const double value = x[i];
        s[i % 8] += value * value;
    }
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

#include "optim_adaptive.h"
