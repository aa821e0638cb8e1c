/* The update loops of AdaGrad, RMSProp and FTRL; the end of optim_body.h, under its rules. */

APS_TARGET static APS_INLINE void APS_OF(adagrad_loop)(const aps_optim_args *a, const int clipped)
{
    APS_ELEM *out = (APS_ELEM *)a->out, *h = (APS_ELEM *)a->m;
    const APS_ELEM *w = (const APS_ELEM *)a->w, *g = (const APS_ELEM *)a->g;
    const APS_REAL lr = (APS_REAL)a->lr, wd = (APS_REAL)a->wd, eps = (APS_REAL)a->eps;
    const APS_REAL rescale = (APS_REAL)a->rescale, clip = (APS_REAL)a->clip;
    const ptrdiff_t n = a->n;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++) {
        const APS_REAL weight = w[i];
        APS_REAL grad = rescale * g[i];
        if (clipped)
            grad = APS_OF(bound)(grad, clip);
        const APS_REAL history = h[i] + grad * grad;
        h[i] = history;
        out[i] = weight - lr * (grad / APS_SQRT(history + eps) + wd * weight);
    }
}

APS_TARGET static void APS_OF(adagrad)(const aps_optim_args *a)
{
    if (a->clip >= 0)
        APS_OF(adagrad_loop)(a, 1);
    else
        APS_OF(adagrad_loop)(a, 0);
}

APS_TARGET static APS_INLINE void APS_OF(rmsprop_loop)(const aps_optim_args *a, const int clipped,
                                                       const int bounded)
{
    APS_ELEM *out = (APS_ELEM *)a->out, *v = (APS_ELEM *)a->v;
    const APS_ELEM *w = (const APS_ELEM *)a->w, *g = (const APS_ELEM *)a->g;
    const APS_REAL lr = (APS_REAL)a->lr, wd = (APS_REAL)a->wd, eps = (APS_REAL)a->eps;
    const APS_REAL rescale = (APS_REAL)a->rescale, clip = (APS_REAL)a->clip;
    const APS_REAL gamma1 = (APS_REAL)a->beta1, rest1 = (APS_REAL)1 - gamma1;
    const APS_REAL most = (APS_REAL)a->clip_weights;
    const ptrdiff_t n = a->n;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++) {
        const APS_REAL weight = w[i];
        APS_REAL grad = rescale * g[i] + wd * weight;
        if (clipped)
            grad = APS_OF(bound)(grad, clip);
        const APS_REAL variance = gamma1 * v[i] + rest1 * grad * grad;
        v[i] = variance;
        APS_REAL next = weight - lr * (grad / APS_SQRT(variance + eps));
        if (bounded)
            next = APS_OF(bound)(next, most);
        out[i] = next;
    }
}

APS_TARGET static void APS_OF(rmsprop)(const aps_optim_args *a)
{
    if (a->clip >= 0 && a->clip_weights >= 0)
        APS_OF(rmsprop_loop)(a, 1, 1);
    else if (a->clip >= 0)
        APS_OF(rmsprop_loop)(a, 1, 0);
    else if (a->clip_weights >= 0)
        APS_OF(rmsprop_loop)(a, 0, 1);
    else
        APS_OF(rmsprop_loop)(a, 0, 0);
}

APS_TARGET static APS_INLINE void APS_OF(centered_loop)(const aps_optim_args *a, const int clipped,
                                                        const int bounded)
{
    APS_ELEM *out = (APS_ELEM *)a->out, *v = (APS_ELEM *)a->v;
    APS_ELEM *m = (APS_ELEM *)a->m, *d = (APS_ELEM *)a->d;
    const APS_ELEM *w = (const APS_ELEM *)a->w, *g = (const APS_ELEM *)a->g;
    const APS_REAL lr = (APS_REAL)a->lr, wd = (APS_REAL)a->wd, eps = (APS_REAL)a->eps;
    const APS_REAL rescale = (APS_REAL)a->rescale, clip = (APS_REAL)a->clip;
    const APS_REAL gamma1 = (APS_REAL)a->beta1, rest1 = (APS_REAL)1 - gamma1;
    const APS_REAL gamma2 = (APS_REAL)a->momentum, most = (APS_REAL)a->clip_weights;
    const ptrdiff_t n = a->n;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++) {
        const APS_REAL weight = w[i];
        APS_REAL grad = rescale * g[i] + wd * weight;
        if (clipped)
            grad = APS_OF(bound)(grad, clip);
        const APS_REAL variance = gamma1 * v[i] + rest1 * grad * grad;
        const APS_REAL mean = gamma1 * m[i] + rest1 * grad;
        const APS_REAL moved =
            gamma2 * d[i] - lr * (grad / APS_SQRT(variance - mean * mean + eps));
        v[i] = variance;
        m[i] = mean;
        d[i] = moved;
        APS_REAL next = weight + moved;
        if (bounded)
            next = APS_OF(bound)(next, most);
        out[i] = next;
    }
}

APS_TARGET static void APS_OF(rmsprop_centered)(const aps_optim_args *a)
{
    if (a->clip >= 0 && a->clip_weights >= 0)
        APS_OF(centered_loop)(a, 1, 1);
    else if (a->clip >= 0)
        APS_OF(centered_loop)(a, 1, 0);
    else if (a->clip_weights >= 0)
        APS_OF(centered_loop)(a, 0, 1);
    else
        APS_OF(centered_loop)(a, 0, 0);
}

APS_TARGET static APS_INLINE void APS_OF(ftrl_loop)(const aps_optim_args *a, const int clipped)
{
    APS_ELEM *out = (APS_ELEM *)a->out, *z = (APS_ELEM *)a->m, *v = (APS_ELEM *)a->v;
    const APS_ELEM *w = (const APS_ELEM *)a->w, *g = (const APS_ELEM *)a->g;
    const APS_REAL lr = (APS_REAL)a->lr, wd = (APS_REAL)a->wd;
    const APS_REAL rescale = (APS_REAL)a->rescale, clip = (APS_REAL)a->clip;
    const APS_REAL lamda1 = (APS_REAL)a->lamda1, beta = (APS_REAL)a->beta;
    const ptrdiff_t n = a->n;
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++) {
        APS_REAL grad = rescale * g[i];
        if (clipped)
            grad = APS_OF(bound)(grad, clip);
        const APS_REAL more = v[i] + grad * grad;
        const APS_REAL root = APS_SQRT(more);
        const APS_REAL pull = z[i] + (grad - (root - APS_SQRT(v[i])) * w[i] / lr);
        z[i] = pull;
        v[i] = more;
        const APS_REAL shrunk = (pull < 0 ? -lamda1 : lamda1) - pull;
        const APS_REAL moved = shrunk / ((beta + root) / lr + wd);
        const APS_REAL length = pull < 0 ? -pull : pull;
        out[i] = length <= lamda1 ? (APS_REAL)0 : moved; /* NaN is not hidden */
    }
}

APS_TARGET static void APS_OF(ftrl)(const aps_optim_args *a)
{
    if (a->clip >= 0)
        APS_OF(ftrl_loop)(a, 1);
    else
        APS_OF(ftrl_loop)(a, 0);
}
