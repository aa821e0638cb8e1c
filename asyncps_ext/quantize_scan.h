/* The loops that only look: what is not finite, and the largest magnitude; included once for each
 * variant by quantize_variant.h behind quantize_bits.h.
 */

#if APS_VECTORS
#include "lane_sums.h"
#endif

/* ---- NaN and infinities, in strips whose counts fit 32 bits and which the caches keep */

APS_TARGET static APS_INLINE uint32_t APS_FN(count_strip)(const aps_f32 *x,
                                                          const aps_f32 *residual, ptrdiff_t n,
                                                          const int fed)
{
    uint32_t count = 0;
    ptrdiff_t i = 0;
#if APS_VECTORS
    /* four sums at once: one would wait for itself */
    const __m256i high = _mm256_set1_epi32(APS_NONFINITE);
    __m256i sums[4];
    for (int k = 0; k < 4; k++)
        sums[k] = _mm256_setzero_si256();
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 4; k++) {
            const __m256i bits = _mm256_castps_si256(APS_FN(load_x)(residual, x, i + 8 * k, fed));
            const __m256i top = _mm256_and_si256(bits, high);
            sums[k] = _mm256_sub_epi32(sums[k], _mm256_cmpeq_epi32(top, high));
        }
    count += APS_FN(sum_of_lanes)(sums);
#endif
    for (; i < n; i++) {
        const uint32_t bits = aps_f32_bits(fed ? x[i] + residual[i] : x[i]);
        count += (bits & APS_NONFINITE) == APS_NONFINITE;
    }
    return count;
}

#define APS_SCAN 4096

APS_TARGET static APS_INLINE ptrdiff_t APS_FN(count_loop)(const aps_f32 *x,
                                                          const aps_f32 *residual, ptrdiff_t n,
                                                          const int fed)
{
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < n; i += APS_SCAN)
        count += APS_FN(count_strip)(x + i, fed ? residual + i : NULL,
                                     n - i < APS_SCAN ? n - i : APS_SCAN, fed);
    return count;
}

APS_TARGET static ptrdiff_t APS_FN(count_nonfinite)(const aps_f32 *x, const aps_f32 *residual,
                                                    ptrdiff_t n)
{
    return APS_BOTH(count_loop, residual, x, residual, n);
}

APS_TARGET static APS_INLINE ptrdiff_t APS_FN(first_loop)(const aps_f32 *x,
                                                          const aps_f32 *residual, ptrdiff_t n,
                                                          const int fed)
{
    for (ptrdiff_t i = 0; i < n; i += APS_SCAN) {
        const ptrdiff_t end = n - i < APS_SCAN ? n : i + APS_SCAN;
        if (APS_FN(count_strip)(x + i, fed ? residual + i : NULL, end - i, fed) == 0)
            continue;
        for (ptrdiff_t j = i; j < end; j++) {
            const uint32_t bits = aps_f32_bits(fed ? x[j] + residual[j] : x[j]);
            if ((bits & APS_NONFINITE) == APS_NONFINITE)
                return j;
        }
    }
    return -1;
}

APS_TARGET static ptrdiff_t APS_FN(first_nonfinite)(const aps_f32 *x, const aps_f32 *residual,
                                                    ptrdiff_t n)
{
    return APS_BOTH(first_loop, residual, x, residual, n);
}
#undef APS_SCAN

/* ---- the largest magnitude: bits without the sign are in the order of the numbers, NaN above all;
 * four maxima at once, as one would wait for itself, each of a page of its own: from memory 1.3
 * times as fast as one page after the other */

#define APS_PAGE 1024

APS_TARGET static float APS_FN(largest)(const aps_f32 *x, ptrdiff_t n)
{
    const aps_u32 *bits = (const aps_u32 *)(const void *)x;
    int32_t most[8] = {0};
    ptrdiff_t i = 0;
#if APS_VECTORS
    const __m256i magnitude = _mm256_set1_epi32(INT32_MAX);
    __m256i highest[4];
    for (int k = 0; k < 4; k++)
        highest[k] = _mm256_setzero_si256();
    for (ptrdiff_t step = APS_PAGE; step >= 16; step = step > 16 ? 16 : 0)
        for (; i + 4 * step <= n; i += 4 * step)
            for (ptrdiff_t j = 0; j < step; j += 16)
                for (int k = 0; k < 4; k++) {
                    const __m256i *at = (const __m256i *)(const void *)(bits + i + k * step + j);
                    const __m256i one = _mm256_and_si256(_mm256_loadu_si256(at), magnitude);
                    const __m256i two = _mm256_and_si256(_mm256_loadu_si256(at + 1), magnitude);
                    highest[k] = _mm256_max_epi32(_mm256_max_epi32(highest[k], one), two);
                }
    _mm256_storeu_si256((__m256i *)(void *)most,
                        _mm256_max_epi32(_mm256_max_epi32(highest[0], highest[1]),
                                         _mm256_max_epi32(highest[2], highest[3])));
#else
    /* of a quarter of the array each */
    const ptrdiff_t quarter = n / 4;
    int32_t a = 0, b = 0, c = 0, d = 0;
    for (; i < quarter; i++) {
        const int32_t first = (int32_t)(bits[i] & 0x7fffffffu);
        const int32_t second = (int32_t)(bits[i + quarter] & 0x7fffffffu);
        const int32_t third = (int32_t)(bits[i + 2 * quarter] & 0x7fffffffu);
        const int32_t fourth = (int32_t)(bits[i + 3 * quarter] & 0x7fffffffu);
        a = first > a ? first : a;
        b = second > b ? second : b;
        c = third > c ? third : c;
        d = fourth > d ? fourth : d;
    }
    most[0] = a;
    most[1] = b;
    most[2] = c;
    most[3] = d;
    i = 4 * quarter;
#endif
    for (; i < n; i++) {
        const int32_t value = (int32_t)(bits[i] & 0x7fffffffu);
        most[0] = value > most[0] ? value : most[0];
    }
    for (int k = 1; k < 8; k++)
        most[0] = most[k] > most[0] ? most[k] : most[0];
    return aps_as_f32((uint32_t)most[0]);
}
#undef APS_PAGE
