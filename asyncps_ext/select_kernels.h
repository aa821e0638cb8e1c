/* Kernels of asyncps_ext.select that look at every element: which of them are largest, and DGC's
 * sums. The variants, the choice of one, and the search for the k-th magnitude.
 */
#ifndef ASYNCPS_SELECT_KERNELS_H
#define ASYNCPS_SELECT_KERNELS_H

#include <math.h>
#include <stdlib.h>

#include "variants.h"

typedef struct {
    const char *name;
    ptrdiff_t (*above)(const aps_u32 *x, ptrdiff_t n, int32_t limit);
    ptrdiff_t (*pick)(const aps_u32 *x, ptrdiff_t from, ptrdiff_t to, int32_t limit,
                      aps_u32 *indices, aps_u32 *values, ptrdiff_t count, ptrdiff_t room);
    void (*add)(aps_f32 *x, const aps_f32 *y, ptrdiff_t n);
    void (*subtract)(aps_f32 *made, const aps_f32 *x, const aps_f32 *y, ptrdiff_t n);
    void (*accumulate)(aps_f32 *u, aps_f32 *v, const aps_f32 *g, ptrdiff_t n, float momentum);
} aps_select_table;

#define APS_MAGNITUDE 0x7fffffffu
/* Elements that are counted in 32 bits, and that are looked at as a whole. */
#define APS_COUNTED ((ptrdiff_t)1 << 20)
#define APS_LOOK 16

/* For each set of eight elements the order that puts them first. */
static uint8_t aps_packing[256][8];

static void aps_select_begin(void)
{
    for (int mask = 0; mask < 256; mask++) {
        int count = 0;
        for (uint8_t i = 0; i < 8; i++)
            if (mask >> i & 1)
                aps_packing[mask][count++] = i;
    }
}

/* The largest magnitude below `least`, or -1. */
static int32_t aps_limit(float least)
{
    int32_t bits;
    memcpy(&bits, &least, sizeof bits);
    return least > 0 ? bits - 1 : -1;
}

/* `pick` one by one, for what is left over. */
static APS_INLINE ptrdiff_t aps_pick_some(const aps_u32 *x, ptrdiff_t from, ptrdiff_t to,
                                          int32_t limit, aps_u32 *indices, aps_u32 *values,
                                          ptrdiff_t count, ptrdiff_t room)
{
    for (ptrdiff_t i = from; i < to; i++) {
        if ((int32_t)(x[i] & APS_MAGNITUDE) <= limit)
            continue;
        if (count == room)
            return -1;
        indices[count] = (uint32_t)i;
        values[count++] = x[i];
    }
    return count;
}

#define APS_BODY "select_body.h"
#include "each_variant.h"

static const aps_select_table *aps_select_table_at(int i)
{
    static const aps_select_table *const tables[] = APS_TABLES;
    return APS_TABLE_AT(tables, i);
}

/* ------------------------------------------------------------------------------ the k-th magnitude
 *
 * Radix selection: a histogram of the upper 11 bits tells which bin holds the k-th magnitude, one
 * of the next 10 bits of that bin which part of it, one of the last 10 which magnitude. Four
 * histograms take turns, since neighbours are often equal and an addition would wait for the one
 * before; among few elements that would cost less than three more histograms do.
 */
#define APS_BINS 2048
#define APS_APART (APS_BINS + 16) /* equal bins of two histograms are not 4 KiB apart */
#define APS_INNER 1024 /* bins of the other two histograms; behind them what is not looked for */
#define APS_TURNS 4
#define APS_FEW 8192 /* below, one histogram */

/* The wanted ones: all magnitudes above `least`, and the first `ties` of those that equal it. */
typedef struct {
    uint32_t least;
    ptrdiff_t ties;
} aps_cut;

/* The bin of a magnitude; whether it begins with `prefix` cannot be guessed, so no branch asks. */
static APS_INLINE uint32_t aps_bin(uint32_t key, const int shift, uint32_t prefix)
{
    const uint32_t digit = (key >> shift) - (prefix << 10);
    return shift == 20 || digit < APS_INNER ? digit : APS_INNER;
}

/* Count the digits at `shift` of those magnitudes that begin with `prefix`, or the first ones. */
static APS_INLINE void aps_histogram(const aps_u32 *x, ptrdiff_t n, const int shift,
                                     uint32_t prefix, uint32_t (*bins)[APS_APART])
{
    ptrdiff_t i = 0;
    if (n < APS_FEW) {
        memset(bins, 0, sizeof *bins);
    } else {
        memset(bins, 0, APS_TURNS * sizeof *bins);
        for (; i + APS_TURNS <= n; i += APS_TURNS) {
            for (int turn = 0; turn < APS_TURNS; turn++)
                bins[turn][aps_bin(x[i + turn] & APS_MAGNITUDE, shift, prefix)]++;
        }
    }
    for (; i < n; i++)
        bins[0][aps_bin(x[i] & APS_MAGNITUDE, shift, prefix)]++;
}

/* Of the k largest of n, 1 <= k <= n. Somebody who changes x meanwhile gets any cut: `bin` may run
 * out then, and whoever collects bounds what is written by itself.
 */
static aps_cut aps_find(const aps_u32 *x, ptrdiff_t n, ptrdiff_t k)
{
    uint32_t bins[APS_TURNS][APS_APART];
    uint32_t prefix = 0;
    ptrdiff_t need = k;
    for (int shift = 20; shift >= 0; shift -= 10) {
        uint32_t bin = shift == 20 ? APS_BINS : APS_INNER;
        if (shift == 20)
            aps_histogram(x, n, 20, prefix, bins);
        else if (shift == 10)
            aps_histogram(x, n, 10, prefix, bins);
        else
            aps_histogram(x, n, 0, prefix, bins);
        ptrdiff_t inside = 0;
        while (bin-- > 0) {
            inside = bins[0][bin];
            if (n >= APS_FEW)
                inside += (ptrdiff_t)bins[1][bin] + bins[2][bin] + bins[3][bin];
            if (inside >= need)
                break;
            need -= inside;
        }
        prefix = prefix << 10 | bin;
        if (inside == need) /* all of this bin: no need to look into it */
            return (aps_cut){ prefix << shift, n };
    }
    return (aps_cut){ prefix, need };
}

/* Write the wanted ones, of which there are k. */
static void aps_collect(const aps_select_table *t, const aps_u32 *x, ptrdiff_t n, aps_cut cut,
                        aps_u32 *indices, aps_u32 *values, ptrdiff_t k)
{
    const int32_t above = (int32_t)cut.least, from = above - 1;
    ptrdiff_t at = 0, count = 0, ties = cut.ties;
    if (ties >= n) {
        t->pick(x, 0, n, from, indices, values, 0, k);
        return;
    }
    /* By blocks that stay in the cache: in one where not all that equal it fit, one by one. */
    while (at < n && ties > 0 && count < k) {
        const ptrdiff_t end = n - at < 4096 ? n : at + 4096;
        const ptrdiff_t equal =
            t->above(x + at, end - at, from) - t->above(x + at, end - at, above);
        if (equal <= ties) {
            count = t->pick(x, at, end, from, indices, values, count, k);
            if (count < 0)
                return;
            ties -= equal;
            at = end;
            continue;
        }
        for (; ties > 0 && at < end && count < k; at++) {
            if ((x[at] & APS_MAGNITUDE) < cut.least)
                continue;
            ties -= (x[at] & APS_MAGNITUDE) == cut.least;
            indices[count] = (uint32_t)at;
            values[count++] = x[at];
        }
    }
    t->pick(x, at, n, above, indices, values, count, k);
}

/* ------------------------------------------------------------------------------------------- top-k
 *
 * A sample says what the k-th magnitude is about. What lies above a slightly smaller one is picked
 * in one pass, and the search goes on among these few. When that fails (the sample misleads, or too
 * many magnitudes are equal) all elements are searched; the result is the same.
 *
 * What is searched may have to be made of two arrays: then that is done in the same pass, by blocks
 * that stay in the cache.
 */
#define APS_SAMPLE_FROM 4096
#define APS_SAMPLE_MOST 16384
#define APS_SAMPLE_RUN 16 /* neighbours that are looked at together: they come in one line */
#define APS_BLOCK 2048

enum { APS_ITSELF, APS_SUM, APS_DIFFERENCE };

/* The elements of a; or a += b, which becomes a; or a - b, which is kept nowhere. */
typedef struct {
    int made_by;
    aps_f32 *a;
    const aps_f32 *b;
} aps_source;

/* Make the elements from..from+n-1 and return them; of a difference in `room`. */
static const aps_u32 *aps_made(const aps_select_table *t, const aps_source *s, ptrdiff_t from,
                               ptrdiff_t n, aps_f32 *room)
{
    aps_f32 *a = s->a + from;
    if (s->made_by == APS_DIFFERENCE) {
        t->subtract(room, a, s->b + from, n);
        return (const aps_u32 *)(const void *)room;
    }
    if (s->made_by == APS_SUM)
        t->add(a, s->b + from, n);
    return (const aps_u32 *)(const void *)a;
}

/* Make all, and pick what lies above limit; -1 when that is more than there is room for. A sum is
 * complete behind this, whatever is returned; from then on it is what s has.
 */
static ptrdiff_t aps_scan(const aps_select_table *t, aps_source *s, ptrdiff_t n, int32_t limit,
                          aps_u32 *indices, aps_u32 *values, ptrdiff_t room)
{
    aps_f32 made[APS_BLOCK];
    ptrdiff_t count = 0;
    if (s->made_by == APS_ITSELF)
        return t->pick((const aps_u32 *)(const void *)s->a, 0, n, limit, indices, values, 0, room);
    for (ptrdiff_t at = 0; at < n; at += APS_BLOCK) {
        const ptrdiff_t many = n - at < APS_BLOCK ? n - at : APS_BLOCK;
        const aps_u32 *x = aps_made(t, s, at, many, made);
        if (count < 0 && s->made_by == APS_SUM)
            continue;
        if (count < 0)
            break;
        const ptrdiff_t before = count;
        count = t->pick(x, 0, many, limit, indices, values, count, room);
        for (ptrdiff_t i = before; i < count; i++)
            indices[i] += (uint32_t)at;
    }
    if (s->made_by == APS_SUM)
        s->made_by = APS_ITSELF;
    return count;
}

/* Write what lies above a magnitude, `few` at `places`, and between them the first of those that
 * equal it, k in all; whether there are enough.
 */
static int aps_fill_up(const aps_select_table *t, const aps_source *s, ptrdiff_t n,
                       uint32_t magnitude, const aps_u32 *places, const aps_u32 *few,
                       ptrdiff_t count, ptrdiff_t k, aps_u32 *indices, aps_u32 *values)
{
    aps_f32 made[APS_BLOCK];
    ptrdiff_t next = 0, to = 0, missing = k - count;
    for (ptrdiff_t at = 0; at < n && missing > 0; at += APS_BLOCK) {
        const ptrdiff_t many = n - at < APS_BLOCK ? n - at : APS_BLOCK;
        const aps_u32 *x = aps_made(t, s, at, many, made);
        for (ptrdiff_t i = 0; i < many && missing > 0; i++) {
            if ((x[i] & APS_MAGNITUDE) != magnitude)
                continue;
            for (; next < count && places[next] < (uint64_t)(at + i); next++, to++) {
                indices[to] = places[next];
                values[to] = few[next];
            }
            indices[to] = (uint32_t)(at + i);
            values[to++] = x[i];
            missing--;
        }
    }
    for (; next < count; next++, to++) {
        indices[to] = places[next];
        values[to] = few[next];
    }
    return missing == 0;
}

/* Whether it has been done. If not, a sum may have been made: then s says so. */
static int aps_topk_by_sample(const aps_select_table *t, aps_source *s, ptrdiff_t n,
                              ptrdiff_t k, aps_u32 *indices, aps_u32 *values)
{
    const ptrdiff_t most = n / 64 < APS_SAMPLE_MOST ? n / 64 : APS_SAMPLE_MOST;
    const ptrdiff_t size = most - most % APS_SAMPLE_RUN;
    const double share = (double)size / (double)n;
    double rank = (double)k * share; /* of the k-th within the sample, and what chance adds to it */
    rank = rank + 4.0 * sqrt(rank) + 8.0;
    if (rank > (double)size / 4.0)
        return 0;
    const ptrdiff_t room = (ptrdiff_t)((rank + 6.0 * sqrt(rank) + 8.0) / share);
    aps_u32 *few = malloc((size_t)(room > size ? room : size) * 2 * sizeof *few);
    if (few == NULL)
        return 0;
    aps_u32 *places = few + (room > size ? room : size);
    /* Multiples of the golden ratio are spread evenly and in step with no rows of a matrix. */
    for (ptrdiff_t i = 0; i < size; i += APS_SAMPLE_RUN) {
        const uint64_t spread = (uint64_t)i * 0x9E3779B97F4A7C15u >> 32;
        const ptrdiff_t any = (ptrdiff_t)(spread * (uint64_t)(n - APS_SAMPLE_RUN) >> 32);
        const ptrdiff_t at = any - any % APS_SAMPLE_RUN;
        for (ptrdiff_t j = 0; j < APS_SAMPLE_RUN; j++) {
            const float a = s->a[at + j];
            const float made = s->made_by == APS_ITSELF ? a
                               : s->made_by == APS_SUM  ? a + s->b[at + j]
                                                        : a - s->b[at + j];
            memcpy(&few[i + j], &made, sizeof made);
        }
    }
    const int32_t about = (int32_t)aps_find(few, size, (ptrdiff_t)rank).least;
    ptrdiff_t count = aps_scan(t, s, n, about - 1, places, few, room);
    if (count < 0) {
        /* Many are equal to it, zeros mostly; then it is the k-th, or those above are few. */
        count = aps_scan(t, s, n, about, places, few, room);
        if (count >= 0 && count < k) {
            const int is_enough = aps_fill_up(t, s, n, (uint32_t)about, places, few, count, k,
                                              indices, values);
            free(few);
            return is_enough;
        }
    }
    if (count >= k) {
        aps_collect(t, few, count, aps_find(few, count, k), indices, values, k);
        for (ptrdiff_t i = 0; i < k; i++) {
            const uint32_t at = indices[i];
            indices[i] = (ptrdiff_t)at < count ? places[at] : 0;
        }
    }
    free(few);
    return count >= k;
}

/* Of what s makes, which is made even if k is 0; -1 when there is no memory for a difference. */
static int aps_topk(const aps_select_table *t, aps_source s, ptrdiff_t n, ptrdiff_t k,
                    aps_u32 *indices, aps_u32 *values)
{
    if (k > 0 && n >= APS_SAMPLE_FROM && aps_topk_by_sample(t, &s, n, k, indices, values))
        return 0;
    if (k == 0 && s.made_by != APS_SUM)
        return 0;
    aps_f32 *room = NULL;
    if (s.made_by == APS_DIFFERENCE && (room = malloc((size_t)n * sizeof *room)) == NULL)
        return -1;
    const aps_u32 *x = aps_made(t, &s, 0, n, room);
    if (k > 0)
        aps_collect(t, x, n, aps_find(x, n, k), indices, values, k);
    free(room);
    return 0;
}

#endif
