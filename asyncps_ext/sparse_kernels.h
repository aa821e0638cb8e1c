/* Kernels of asyncps_ext.sparse: rows by number, sums of sorted sparse rows, unique ids.
 *
 * One body for all processors: these loops wait for memory, and rows are copied by memcpy, which
 * chooses by itself.
 */
#ifndef ASYNCPS_SPARSE_KERNELS_H
#define ASYNCPS_SPARSE_KERNELS_H

#include <stdlib.h>

#include "ascending.h"
#include "sparse_rows.h"

static APS_INLINE void aps_gather_loop(const aps_rows *t, const aps_i64 *slots, ptrdiff_t n,
                                       char *out, const ptrdiff_t row)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        if (row > 8 && i + APS_AHEAD < n)
            aps_ask_for_row(t, slots[i + APS_AHEAD]);
        const int64_t slot = slots[i];
        if (aps_has_row(t, slot))
            memcpy(out + i * row, aps_row_at(t, slot), (size_t)row);
    }
}

static APS_INLINE void aps_scatter_loop(const aps_rows *t, const aps_i64 *slots, ptrdiff_t n,
                                        const char *rows, const ptrdiff_t row)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        if (row > 8 && i + APS_AHEAD < n)
            aps_ask_for_row(t, slots[i + APS_AHEAD]);
        const int64_t slot = slots[i];
        if (aps_has_row(t, slot))
            memcpy(aps_row_at(t, slot), rows + i * row, (size_t)row);
    }
}

/* A row of one element is a load and a store, where memcpy of a length unknown is a call. */
static void aps_gather(const aps_rows *t, const aps_i64 *slots, ptrdiff_t n, char *out)
{
    switch (t->row) {
    case 1: aps_gather_loop(t, slots, n, out, 1); break;
    case 2: aps_gather_loop(t, slots, n, out, 2); break;
    case 4: aps_gather_loop(t, slots, n, out, 4); break;
    case 8: aps_gather_loop(t, slots, n, out, 8); break;
    default: aps_gather_loop(t, slots, n, out, t->row);
    }
}

static void aps_scatter(const aps_rows *t, const aps_i64 *slots, ptrdiff_t n, const char *rows)
{
    switch (t->row) {
    case 1: aps_scatter_loop(t, slots, n, rows, 1); break;
    case 2: aps_scatter_loop(t, slots, n, rows, 2); break;
    case 4: aps_scatter_loop(t, slots, n, rows, 4); break;
    case 8: aps_scatter_loop(t, slots, n, rows, 8); break;
    default: aps_scatter_loop(t, slots, n, rows, t->row);
    }
}

typedef void (*aps_scatter_add)(const aps_rows *t, const aps_i64 *slots, ptrdiff_t n,
                                const char *rows, ptrdiff_t width);
typedef ptrdiff_t (*aps_merge)(const aps_i64 *ia, const char *a_, ptrdiff_t na,
                               const aps_i64 *ib, const char *b_, ptrdiff_t nb,
                               aps_i64 *ids, char *out_, ptrdiff_t width);
typedef void (*aps_sum_groups)(const aps_i64 *group, ptrdiff_t n, const char *rows_,
                               char *out_, char *seen, ptrdiff_t many, ptrdiff_t width);

#define APS_SPARSE(suffix, T)                                                                \
    static void aps_scatter_add_##suffix(const aps_rows *t, const aps_i64 *slots, ptrdiff_t n, \
                                         const char *rows_, ptrdiff_t width)                 \
    {                                                                                        \
        const T *rows = (const T *)rows_;                                                    \
        for (ptrdiff_t i = 0; i < n; i++, rows += width) {                                   \
            if (i + APS_AHEAD < n)                                                           \
                aps_ask_for_row(t, slots[i + APS_AHEAD]);                                    \
            const int64_t slot = slots[i];                                                   \
            if (!aps_has_row(t, slot))                                                       \
                continue;                                                                    \
            T *acc = (T *)aps_row_at(t, slot);                                               \
            APS_INDEPENDENT                                                                  \
            for (ptrdiff_t j = 0; j < width; j++)                                            \
                acc[j] = (T)(acc[j] + rows[j]);                                              \
        }                                                                                    \
    }                                                                                        \
    /* Of one element a row, without a branch: whose turn it is cannot be foretold. */      \
    static ptrdiff_t aps_merge_ones_##suffix(const aps_i64 *ia, const T *a, ptrdiff_t *na,   \
                                             const aps_i64 *ib, const T *b, ptrdiff_t *nb,   \
                                             aps_i64 *ids, T *out)                           \
    {                                                                                        \
        ptrdiff_t i = 0, j = 0, k = 0;                                                       \
        while (i < *na && j < *nb) {                                                         \
            const int64_t x = ia[i], y = ib[j];                                              \
            const T of_a = a[i], of_b = b[j], both = (T)(of_a + of_b);                       \
            const T one = x < y ? of_a : of_b;                                               \
            ids[k] = x < y ? x : y;                                                          \
            out[k++] = x == y ? both : one;                                                  \
            i += x <= y;                                                                     \
            j += y <= x;                                                                     \
        }                                                                                    \
        *na = i;                                                                             \
        *nb = j;                                                                             \
        return k;                                                                            \
    }                                                                                        \
    static ptrdiff_t aps_merge_##suffix(const aps_i64 *ia, const char *a_, ptrdiff_t na,     \
                                        const aps_i64 *ib, const char *b_, ptrdiff_t nb,     \
                                        aps_i64 *ids, char *out_, ptrdiff_t width)           \
    {                                                                                        \
        const T *a = (const T *)a_, *b = (const T *)b_;                                      \
        T *out = (T *)out_;                                                                  \
        const size_t row = (size_t)width * sizeof(T);                                        \
        ptrdiff_t i = 0, j = 0, k = 0;                                                       \
        if (width == 1) {                                                                    \
            i = na;                                                                          \
            j = nb;                                                                          \
            k = aps_merge_ones_##suffix(ia, a, &i, ib, b, &j, ids, out);                     \
        }                                                                                    \
        while (i < na && j < nb) {                                                           \
            T *to = out + k * width;                                                         \
            if (ia[i] == ib[j]) {                                                            \
                const T *x = a + i * width, *y = b + j * width;                              \
                APS_INDEPENDENT                                                              \
                for (ptrdiff_t e = 0; e < width; e++)                                        \
                    to[e] = (T)(x[e] + y[e]);                                                \
                ids[k++] = ia[i++];                                                          \
                j++;                                                                         \
            } else if (ia[i] < ib[j]) {                                                      \
                memcpy(to, a + i * width, row);                                              \
                ids[k++] = ia[i++];                                                          \
            } else {                                                                         \
                memcpy(to, b + j * width, row);                                              \
                ids[k++] = ib[j++];                                                          \
            }                                                                                \
        }                                                                                    \
        if (i < na) {                                                                        \
            memcpy(ids + k, ia + i, (size_t)(na - i) * sizeof(int64_t));                     \
            memcpy(out + k * width, a + i * width, (size_t)(na - i) * row);                  \
        } else if (j < nb) {                                                                 \
            memcpy(ids + k, ib + j, (size_t)(nb - j) * sizeof(int64_t));                     \
            memcpy(out + k * width, b + j * width, (size_t)(nb - j) * row);                  \
        }                                                                                    \
        return k + (na - i) + (nb - j);                                                      \
    }                                                                                        \
    static void aps_sum_groups_##suffix(const aps_i64 *group, ptrdiff_t n, const char *rows_,\
                                        char *out_, char *seen, ptrdiff_t many,              \
                                        ptrdiff_t width)                                     \
    {                                                                                        \
        const T *rows = (const T *)rows_;                                                    \
        for (ptrdiff_t i = 0; i < n; i++, rows += width) {                                   \
            const int64_t at = group[i];                                                     \
            if ((uint64_t)at >= (uint64_t)many)                                              \
                continue; /* changed since it was checked */                                 \
            T *acc = (T *)out_ + at * width;                                                 \
            if (!seen[at]) {                                                                 \
                seen[at] = 1;                                                                \
                memcpy(acc, rows, (size_t)width * sizeof(T));                                \
                continue;                                                                    \
            }                                                                                \
            APS_INDEPENDENT                                                                  \
            for (ptrdiff_t j = 0; j < width; j++)                                            \
                acc[j] = (T)(acc[j] + rows[j]);                                              \
        }                                                                                    \
    }

APS_SPARSE(f32, aps_f32)
APS_SPARSE(f64, aps_f64)
APS_SPARSE(u8, aps_u8)
APS_SPARSE(u32, aps_u32)
APS_SPARSE(u64, aps_u64)
#undef APS_SPARSE

/* In the order of APS_F32... in variants.h; signed integers wrap as unsigned ones do. */
#define APS_EACH(name) { name##_f32, name##_f64, name##_u8, name##_u8, name##_u32, name##_u64 }
static const aps_scatter_add aps_scatter_adds[APS_DTYPES] = APS_EACH(aps_scatter_add);
static const aps_merge aps_merges[APS_DTYPES] = APS_EACH(aps_merge);
static const aps_sum_groups aps_sums_of_groups[APS_DTYPES] = APS_EACH(aps_sum_groups);
#undef APS_EACH

#endif
