/* Kernels of asyncps_ext.optim: what a kernel is given, the variants and the choice of one. */
#ifndef ASYNCPS_OPTIM_KERNELS_H
#define ASYNCPS_OPTIM_KERNELS_H

#include <math.h>

#include "variants.h"

typedef struct {
    void *out;
    const void *w, *g;
    void *m, *v, *d;
    ptrdiff_t n;
    uint64_t factor; /* rescale of integers, modulo 2^64 */
    double lr, momentum, beta1, beta2, eps, wd, rescale, clip;
    double eta, lamda1, beta, fix1, fix2, clip_weights;
    int nesterov;
} aps_optim_args;

enum { APS_ADAM, APS_ADAMW, APS_LAMB }; /* steps with Adam's moments */

typedef void (*aps_update)(const aps_optim_args *args);
typedef double (*aps_squares)(const void *x, ptrdiff_t n);

typedef struct {
    const char *name;
    aps_update test[APS_DTYPES];
    aps_update sgd[2], sgd_momentum[2], adam[2], adamw[2], lamb_direction[2];
    aps_update adagrad[2], rmsprop[2], rmsprop_centered[2], ftrl[2];
    aps_squares squares[2];
} aps_optim_table;

#define APS_BODY "optim_variant.h"
#include "each_variant.h"

static const aps_optim_table *aps_optim_table_at(int i)
{
    static const aps_optim_table *const tables[] = APS_TABLES;
    return APS_TABLE_AT(tables, i);
}

#endif
