/* Kernels of asyncps_ext.reduce: the variants and the choice of one. */
#ifndef ASYNCPS_REDUCE_KERNELS_H
#define ASYNCPS_REDUCE_KERNELS_H

#include "halves.h"
#include "woven.h"

typedef void (*aps_sum)(void *out, const void *const *parts, ptrdiff_t count, ptrdiff_t n);
typedef void (*aps_scale)(void *x, double factor, ptrdiff_t n);

typedef struct {
    const char *name;
    aps_binary add[APS_DTYPES];
    aps_sum add_all[APS_DTYPES];
    aps_scale scale[2];
    aps_binary add_f16, add_bf16, widen_f16, widen_bf16, narrow_f16, narrow_bf16;
} aps_reduce_table;

/* Elements that are summed at once: a block of float64 takes a quarter of the smallest L1. */
#define APS_SUM_BLOCK 1024

#define APS_BODY "reduce_body.h"
#include "each_variant.h"

static const aps_reduce_table *aps_reduce_table_at(int i)
{
    static const aps_reduce_table *const tables[] = APS_TABLES;
    return APS_TABLE_AT(tables, i);
}

#endif
