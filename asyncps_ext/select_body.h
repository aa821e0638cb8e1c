/* The loops of asyncps_ext.select that look at every element; included once for each variant
 * (each_variant.h).
 *
 * A magnitude is the bits of a float32 without its sign: as integers they have the order of the
 * numbers, and no denormal is slow. `limit` is the largest magnitude that is not wanted, or -1.
 */

#if APS_VECTORS
#include "lane_sums.h"
#endif

#if APS_VECTORS > 1
enum { APS_FN(lanes) = 16 };

/* Which of x[0..lanes-1] have a magnitude above limit. */
APS_TARGET static APS_INLINE uint32_t APS_FN(wanted)(const aps_u32 *x, int32_t limit)
{
    const __m512i bits = _mm512_loadu_si512((const void *)x);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32((int32_t)APS_MAGNITUDE));
    return _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(limit));
}

/* Write numbers and bits of those of x[at..at+lanes-1], and something behind them. */
APS_TARGET static APS_INLINE void APS_FN(pack)(aps_u32 *indices, aps_u32 *values,
                                               const aps_u32 *x, ptrdiff_t at, uint32_t mask)
{
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i number = _mm512_add_epi32(_mm512_set1_epi32((int32_t)(uint32_t)at), first);
    const __m512i bits = _mm512_loadu_si512((const void *)(x + at));
    const __mmask16 which = (__mmask16)mask;
    /* not to memory at once, which some processors do one by one */
    _mm512_storeu_si512((void *)indices, _mm512_maskz_compress_epi32(which, number));
    _mm512_storeu_si512((void *)values, _mm512_maskz_compress_epi32(which, bits));
}
#elif APS_VECTORS
enum { APS_FN(lanes) = 8 };

APS_TARGET static APS_INLINE uint32_t APS_FN(wanted)(const aps_u32 *x, int32_t limit)
{
    const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)x);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32((int32_t)APS_MAGNITUDE));
    const __m256i is_more = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(limit));
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(is_more));
}

APS_TARGET static APS_INLINE void APS_FN(pack)(aps_u32 *indices, aps_u32 *values,
                                               const aps_u32 *x, ptrdiff_t at, uint32_t mask)
{
    const __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i number = _mm256_add_epi32(_mm256_set1_epi32((int32_t)(uint32_t)at), first);
    const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(x + at));
    const __m128i firsts = _mm_loadl_epi64((const __m128i *)(const void *)aps_packing[mask]);
    const __m256i order = _mm256_cvtepu8_epi32(firsts);
    _mm256_storeu_si256((__m256i *)(void *)indices, _mm256_permutevar8x32_epi32(number, order));
    _mm256_storeu_si256((__m256i *)(void *)values, _mm256_permutevar8x32_epi32(bits, order));
}
#endif

/* How many magnitudes lie above limit. */
APS_TARGET static ptrdiff_t APS_FN(above)(const aps_u32 *x, ptrdiff_t n, int32_t limit)
{
    ptrdiff_t total = 0;
    for (ptrdiff_t at = 0; at < n; at += APS_COUNTED) {
        const ptrdiff_t end = n - at < APS_COUNTED ? n : at + APS_COUNTED;
        uint32_t count = 0;
        ptrdiff_t i = at;
#if APS_VECTORS
        /* four sums at once: one would wait for itself */
        const __m256i magnitude = _mm256_set1_epi32((int32_t)APS_MAGNITUDE);
        const __m256i bound = _mm256_set1_epi32(limit);
        __m256i sums[4];
        for (int k = 0; k < 4; k++)
            sums[k] = _mm256_setzero_si256();
        for (; i + 32 <= end; i += 32)
            for (int k = 0; k < 4; k++) {
                const void *from = x + i + 8 * k;
                const __m256i bits = _mm256_loadu_si256((const __m256i *)from);
                const __m256i found = _mm256_and_si256(bits, magnitude);
                sums[k] = _mm256_sub_epi32(sums[k], _mm256_cmpgt_epi32(found, bound));
            }
        count += APS_FN(sum_of_lanes)(sums);
#endif
        for (; i < end; i++)
            count += (uint32_t)((int32_t)(x[i] & APS_MAGNITUDE) > limit);
        total += count;
    }
    return total;
}

/* Append number and bits of the elements from..to-1 whose magnitude lies above limit to the first
 * `count` of `room` places; returns the new count, or -1 when there are more than places. Places
 * behind the count may be written.
 */
APS_TARGET static ptrdiff_t APS_FN(pick)(const aps_u32 *x, ptrdiff_t from, ptrdiff_t to,
                                         int32_t limit, aps_u32 *indices, aps_u32 *values,
                                         ptrdiff_t count, ptrdiff_t room)
{
    ptrdiff_t i = from;
#if APS_VECTORS
    const int lanes = APS_FN(lanes);
    for (; i + 32 <= to && count + 32 <= room; i += 32) {
        uint32_t masks[4], every = 0;
        for (int j = 0; j < 32 / lanes; j++) {
            masks[j] = APS_FN(wanted)(x + i + lanes * j, limit);
            every |= masks[j] << lanes * j;
        }
        const int many = __builtin_popcount(every);
        if (many <= 2) { /* two are written, so that there is no branch to guess */
            const ptrdiff_t one = i + (__builtin_ctz(every | 0x80000000u));
            const ptrdiff_t two = i + (__builtin_ctz((every & (every - 1)) | 0x80000000u));
            indices[count] = (uint32_t)one;
            values[count] = x[one];
            indices[count + 1] = (uint32_t)two;
            values[count + 1] = x[two];
            count += many;
            continue;
        }
        for (int j = 0; j < 32 / lanes; j++) {
            APS_FN(pack)(indices + count, values + count, x, i + lanes * j, masks[j]);
            count += __builtin_popcount(masks[j]);
        }
    }
    for (; i + lanes <= to; i += lanes) {
        uint32_t mask = APS_FN(wanted)(x + i, limit);
        if (count + lanes <= room) {
            APS_FN(pack)(indices + count, values + count, x, i, mask);
            count += __builtin_popcount(mask);
        } else if (mask) {
            if (count + __builtin_popcount(mask) > room)
                return -1;
            for (; mask; mask &= mask - 1, count++) {
                const ptrdiff_t at = i + __builtin_ctz(mask);
                indices[count] = (uint32_t)at;
                values[count] = x[at];
            }
        }
    }
#else
    for (; i + APS_LOOK <= to; i += APS_LOOK) {
        uint32_t any = 0;
        for (ptrdiff_t j = i; j < i + APS_LOOK; j++)
            any |= (uint32_t)((int32_t)(x[j] & APS_MAGNITUDE) > limit);
        if (!any)
            continue;
        if (count + APS_LOOK > room) {
            count = aps_pick_some(x, i, i + APS_LOOK, limit, indices, values, count, room);
            if (count < 0)
                return -1;
            continue;
        }
        for (ptrdiff_t j = i; j < i + APS_LOOK; j++) {
            const uint32_t bits = x[j];
            indices[count] = (uint32_t)j;
            values[count] = bits;
            count += (int32_t)(bits & APS_MAGNITUDE) > limit;
        }
    }
#endif
    return aps_pick_some(x, i, to, limit, indices, values, count, room);
}

/* x = x + y. */
APS_TARGET static void APS_FN(add)(aps_f32 *x, const aps_f32 *y, ptrdiff_t n)
{
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++)
        x[i] = x[i] + y[i];
}

/* made = x - y. */
APS_TARGET static void APS_FN(subtract)(aps_f32 *made, const aps_f32 *x, const aps_f32 *y,
                                        ptrdiff_t n)
{
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++)
        made[i] = x[i] - y[i];
}

/* u = momentum * u + g; v = v + u. */
APS_TARGET static void APS_FN(accumulate)(aps_f32 *u, aps_f32 *v, const aps_f32 *g,
                                          ptrdiff_t n, float momentum)
{
    APS_INDEPENDENT
    for (ptrdiff_t i = 0; i < n; i++) {
        const float moved = momentum * u[i];
        const float sum = moved + g[i];
        u[i] = sum;
        v[i] = v[i] + sum;
    }
}

static const aps_select_table APS_FN(table) = {
    APS_VARIANT, APS_FN(above), APS_FN(pick), APS_FN(add), APS_FN(subtract),
    APS_FN(accumulate),
};
