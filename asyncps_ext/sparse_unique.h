/* Unique ids and the place of each: a bitmap where ids lie dense, else a radix sort. */
#ifndef ASYNCPS_SPARSE_UNIQUE_H
#define ASYNCPS_SPARSE_UNIQUE_H

#include <stdlib.h>

#include "variants.h"

/* A bitmap is worth its walk while there are no more than this many bits for each id. */
#define APS_BITS_AN_ID 256
#define APS_DIGIT 11
#define APS_BUCKETS (1 << APS_DIGIT)

typedef struct {
    uint64_t key, at;
} aps_pair;

/* Ids that ascend already need no work but the count. Unique is written, and inverse if there. */
static ptrdiff_t aps_unique_sorted(const aps_i64 *ids, ptrdiff_t n, aps_i64 *unique,
                                   aps_i64 *inverse)
{
    ptrdiff_t k = -1;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (i == 0 || ids[i] != ids[i - 1])
            unique[++k] = ids[i];
        inverse[i] = k;
    }
    return k + 1;
}

/* One bit an id, and for each word how many bits are set before it. -1: no memory. */
static ptrdiff_t aps_unique_bitmap(const aps_i64 *ids, ptrdiff_t n, int64_t low, uint64_t span,
                                   aps_i64 *unique, aps_i64 *inverse)
{
    const size_t words = (size_t)(span / 64 + 1);
    uint64_t *bits = (uint64_t *)calloc(words, sizeof *bits);
    int64_t *before = (int64_t *)malloc(words * sizeof *before);
    ptrdiff_t k = -1;
    if (bits != NULL && before != NULL) {
        k = 0;
        for (ptrdiff_t i = 0; i < n; i++) {
            const uint64_t at = (uint64_t)ids[i] - (uint64_t)low;
            if (at <= span) /* else it has changed meanwhile */
                bits[at / 64] |= (uint64_t)1 << (at % 64);
        }
        for (size_t w = 0; w < words; w++) {
            before[w] = k;
            for (uint64_t rest = bits[w]; rest != 0; rest &= rest - 1)
                unique[k++] = (int64_t)((uint64_t)low + w * 64 + (uint64_t)__builtin_ctzll(rest));
        }
        for (ptrdiff_t i = 0; i < n; i++) {
            const uint64_t given = (uint64_t)ids[i] - (uint64_t)low;
            const uint64_t at = given <= span ? given : span;
            const uint64_t below = bits[at / 64] & (((uint64_t)1 << (at % 64)) - 1);
            inverse[i] = before[at / 64] + __builtin_popcountll(below);
        }
    }
    free(bits);
    free(before);
    return k;
}

/* By digits of 11 bits from the lowest, as many as the span has. -1: no memory. */
static ptrdiff_t aps_unique_radix(const aps_i64 *ids, ptrdiff_t n, int64_t low, uint64_t span,
                                  aps_i64 *unique, aps_i64 *inverse)
{
    aps_pair *room = (aps_pair *)malloc(2 * (size_t)n * sizeof *room);
    if (room == NULL)
        return -1;
    aps_pair *from = room, *to = room + n;
    for (ptrdiff_t i = 0; i < n; i++) {
        from[i].key = (uint64_t)ids[i] - (uint64_t)low;
        from[i].at = (uint64_t)i;
    }
    for (int shift = 0; shift < 64 && (span >> shift) != 0; shift += APS_DIGIT) {
        size_t start[APS_BUCKETS] = {0}, sum = 0;
        for (ptrdiff_t i = 0; i < n; i++)
            start[(from[i].key >> shift) % APS_BUCKETS]++;
        for (int d = 0; d < APS_BUCKETS; d++) {
            const size_t many = start[d];
            start[d] = sum;
            sum += many;
        }
        for (ptrdiff_t i = 0; i < n; i++)
            to[start[(from[i].key >> shift) % APS_BUCKETS]++] = from[i];
        aps_pair *const swap = from;
        from = to;
        to = swap;
    }
    ptrdiff_t k = -1;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (i == 0 || from[i].key != from[i - 1].key)
            unique[++k] = (int64_t)(from[i].key + (uint64_t)low);
        inverse[from[i].at] = k;
    }
    free(room);
    return k + 1;
}

/* How many are unique; they and the place of each id among them are written. -1: no memory. */
static ptrdiff_t aps_unique(const aps_i64 *ids, ptrdiff_t n, aps_i64 *unique, aps_i64 *inverse)
{
    if (n == 0)
        return 0;
    int64_t low = ids[0], high = ids[0];
    int falls = 0;
    for (ptrdiff_t i = 1; i < n; i++) {
        falls |= ids[i] < ids[i - 1];
        low = ids[i] < low ? ids[i] : low;
        high = ids[i] > high ? ids[i] : high;
    }
    if (!falls)
        return aps_unique_sorted(ids, n, unique, inverse);
    const uint64_t span = (uint64_t)high - (uint64_t)low;
    if (span / APS_BITS_AN_ID < (uint64_t)n)
        return aps_unique_bitmap(ids, n, low, span, unique, inverse);
    return aps_unique_radix(ids, n, low, span, unique, inverse);
}

#endif
