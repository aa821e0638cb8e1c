/* Kernels of asyncps_ext.select that touch chosen elements only: what is taken out of an array,
 * what is added to one, and the sum of two sparse arrays.
 *
 * One body for all processors: these loops wait for memory. Indices have been checked before, but
 * somebody may change them meanwhile: one that is not below size by now is left out. A branch that
 * is never taken costs nothing beside a miss.
 */
#ifndef ASYNCPS_SELECT_SUMS_H
#define ASYNCPS_SELECT_SUMS_H

#include "ascending.h"
#include "halves.h"

/* Elements asked for ahead of their turn: about the time of one miss. */
#define APS_AHEAD 24
/* Zeros are written this many at a time and filled while they are in the cache. */
#define APS_ZEROS 8192

/* Ask for an element ahead of its turn. */
static APS_INLINE void aps_ask(const aps_u32 *array, const aps_u32 *indices, ptrdiff_t i,
                               ptrdiff_t n)
{
    if (i + APS_AHEAD < n)
        __builtin_prefetch((const char *)(array + indices[i + APS_AHEAD]), 1);
}

/* values = x there, and zero stays behind. */
static void aps_take(aps_u32 *x, ptrdiff_t size, const aps_u32 *indices, aps_u32 *values,
                     ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        aps_ask(x, indices, i, n);
        const uint32_t at = indices[i];
        if ((ptrdiff_t)at >= size)
            continue;
        values[i] = x[at];
        x[at] = 0;
    }
}

/* values = x there as float16, and what that leaves out stays behind. */
static void aps_take_f16(aps_f32 *x, ptrdiff_t size, const aps_u32 *indices, aps_u16 *values,
                         ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        aps_ask((const aps_u32 *)(const void *)x, indices, i, n);
        const uint32_t at = indices[i];
        if ((ptrdiff_t)at >= size)
            continue;
        const float value = x[at];
        const uint16_t half = aps_sent_f16(value);
        values[i] = half;
        x[at] = aps_left_half(value, aps_f16_to_f32(half));
    }
}

/* values = v there, and zero stays behind in u and v. */
static void aps_mask_both(aps_u32 *u, aps_u32 *v, ptrdiff_t size, const aps_u32 *indices,
                          aps_u32 *values, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        aps_ask(u, indices, i, n);
        aps_ask(v, indices, i, n);
        const uint32_t at = indices[i];
        if ((ptrdiff_t)at >= size)
            continue;
        values[i] = v[at];
        u[at] = 0;
        v[at] = 0;
    }
}

static void aps_add_at(aps_f32 *acc, ptrdiff_t size, const aps_u32 *indices, const aps_f32 *values,
                       ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        aps_ask((const aps_u32 *)(const void *)acc, indices, i, n);
        const uint32_t at = indices[i];
        if ((ptrdiff_t)at < size)
            acc[at] = acc[at] + values[i];
    }
}

static void aps_add_at_f16(aps_f32 *acc, ptrdiff_t size, const aps_u32 *indices,
                           const aps_u16 *values, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        aps_ask((const aps_u32 *)(const void *)acc, indices, i, n);
        const uint32_t at = indices[i];
        if ((ptrdiff_t)at < size)
            acc[at] = acc[at] + aps_f16_to_f32(values[i]);
    }
}

/* out = values there and zero elsewhere. */
static void aps_set_at(aps_u32 *out, ptrdiff_t size, const aps_u32 *indices, const aps_u32 *values,
                       ptrdiff_t n)
{
    ptrdiff_t i = 0;
    for (ptrdiff_t at = 0; at < size; at += APS_ZEROS) {
        const ptrdiff_t end = size - at < APS_ZEROS ? size : at + APS_ZEROS;
        memset((void *)(out + at), 0, (size_t)(end - at) * sizeof *out);
        for (uint32_t next; i < n && (ptrdiff_t)(next = indices[i]) < end; i++)
            out[next] = values[i];
    }
}

/* The union of two ascending lists; values of both are a + b. Returns how many there are. No branch
 * depends on the indices: which comes next cannot be guessed.
 */
static ptrdiff_t aps_merge(const aps_u32 *ia, const aps_f32 *va, ptrdiff_t na, const aps_u32 *ib,
                           const aps_f32 *vb, ptrdiff_t nb, aps_u32 *indices, aps_f32 *values)
{
    ptrdiff_t a = 0, b = 0, count = 0;
    while (a < na && b < nb) {
        const uint32_t at_a = ia[a], at_b = ib[b];
        const uint32_t first = aps_mask(at_a <= at_b), second = aps_mask(at_b <= at_a);
        const uint32_t one = aps_pick(first, aps_f32_bits(va[a]), aps_f32_bits(vb[b]));
        const uint32_t sum = aps_f32_bits(va[a] + vb[b]);
        indices[count] = aps_pick(first, at_a, at_b);
        values[count++] = aps_as_f32(aps_pick(first & second, sum, one));
        a += first & 1;
        b += second & 1;
    }
    memcpy((void *)(indices + count), (const void *)(ia + a), (size_t)(na - a) * sizeof *ia);
    memcpy((void *)(values + count), (const void *)(va + a), (size_t)(na - a) * sizeof *va);
    count += na - a;
    memcpy((void *)(indices + count), (const void *)(ib + b), (size_t)(nb - b) * sizeof *ib);
    memcpy((void *)(values + count), (const void *)(vb + b), (size_t)(nb - b) * sizeof *vb);
    return count + nb - b;
}

#endif
