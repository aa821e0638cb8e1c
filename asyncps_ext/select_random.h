/* Random indices for asyncps_ext.select: k different ones of n, a function of seed, n and k alone.
 *
 * Numbers are drawn until there are k different ones: of a small share of n in rounds, in each as
 * many as are missing, which are sorted and united with those had before; of more with a bit for
 * each index. Nothing here tells one index from another, so that all sets of k are equally likely.
 * Of more than half of n the others are drawn.
 */
#ifndef ASYNCPS_SELECT_RANDOM_H
#define ASYNCPS_SELECT_RANDOM_H

#include <stdlib.h>

#include "variants.h"

/* SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014). */
#define APS_GAMMA 0x9E3779B97F4A7C15u

static APS_INLINE uint64_t aps_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Sort m numbers below 2^bits, with room for as many. */
static void aps_sort(uint32_t *numbers, uint32_t *room, ptrdiff_t m, int bits)
{
    const int widest = m < 4096 ? 8 : 11;
    const int passes = (bits + widest - 1) / widest;
    if (m < 2 || passes == 0)
        return;
    const int width = (bits + passes - 1) / passes;
    uint32_t *from = numbers, *to = room;
    for (int pass = 0; pass < passes; pass++) {
        uint32_t starts[1 << 11] = { 0 }, sum = 0;
        const int shift = pass * width;
        const uint32_t digits = ((uint32_t)1 << width) - 1;
        for (ptrdiff_t i = 0; i < m; i++)
            starts[from[i] >> shift & digits]++;
        for (uint32_t digit = 0; digit <= digits; digit++) {
            const uint32_t many = starts[digit];
            starts[digit] = sum;
            sum += many;
        }
        for (ptrdiff_t i = 0; i < m; i++)
            to[starts[from[i] >> shift & digits]++] = from[i];
        uint32_t *other = from;
        from = to;
        to = other;
    }
    if (from != numbers)
        memcpy(numbers, from, (size_t)m * sizeof *numbers);
}

/* Leave only numbers that are new: once each, and none of `had`. Both lists ascend. */
static ptrdiff_t aps_only_new(uint32_t *numbers, ptrdiff_t m, const uint32_t *had, ptrdiff_t many)
{
    ptrdiff_t at = 0, count = 0;
    for (ptrdiff_t i = 0; i < m; i++) {
        const uint32_t number = numbers[i];
        while (at < many && had[at] < number)
            at++;
        const int is_old = (at < many && had[at] == number) ||
                           (count > 0 && numbers[count - 1] == number);
        if (!is_old)
            numbers[count++] = number;
    }
    return count;
}

/* Unite two ascending lists without a common number, from the end, in the first one's place. */
static void aps_unite(uint32_t *had, ptrdiff_t many, const uint32_t *numbers, ptrdiff_t m)
{
    for (ptrdiff_t to = many + m; m > 0; to--) {
        const int is_had = many > 0 && had[many - 1] > numbers[m - 1];
        had[to - 1] = is_had ? had[--many] : numbers[--m];
    }
}

/* The numbers drawn. A word of 32 bits times n has an index in its upper half; indices would come
 * up unequally often but for the words that are left out (Lemire, "Fast random integer generation
 * in an interval", 2019).
 */
typedef struct {
    uint64_t state, n;
    uint32_t left_out;
} aps_stream;

/* Whether the next word has an index. */
static APS_INLINE int aps_next(aps_stream *stream, uint32_t *index)
{
    stream->state += APS_GAMMA;
    const uint64_t product = (aps_mix(stream->state) >> 32) * stream->n;
    *index = (uint32_t)(product >> 32);
    return (uint32_t)product >= stream->left_out;
}

/* k different ones, ascending, where k is small beside n; 0, or -1 without memory. */
static int aps_draw_few(aps_stream stream, uint32_t *chosen, ptrdiff_t k)
{
    uint32_t *numbers = malloc((size_t)k * 2 * sizeof *numbers + 1);
    int bits = 0;
    if (numbers == NULL)
        return -1;
    while ((stream.n - 1) >> bits)
        bits++;
    for (ptrdiff_t had = 0; had < k;) {
        ptrdiff_t m = 0;
        for (ptrdiff_t i = had; i < k; i++)
            m += aps_next(&stream, numbers + m);
        aps_sort(numbers, numbers + k, m, bits);
        m = aps_only_new(numbers, m, chosen, had);
        aps_unite(chosen, had, numbers, m);
        had += m;
    }
    free(numbers);
    return 0;
}

/* The same with a bit for each of n; if `others`, those that are not drawn are written. A word that
 * completes the k is the last one of a round above, so the result is the same.
 */
static int aps_draw_many(aps_stream stream, uint32_t *out, ptrdiff_t k, int others)
{
    const uint64_t n = stream.n, words = (n + 63) / 64;
    uint64_t *bits = calloc((size_t)words, sizeof *bits);
    if (bits == NULL)
        return -1;
    for (ptrdiff_t had = 0; had < k;) {
        uint32_t index = 0;
        if (!aps_next(&stream, &index))
            continue;
        uint64_t *word = bits + index / 64;
        had += !(*word >> index % 64 & 1);
        *word |= (uint64_t)1 << index % 64;
    }
    for (uint64_t at = 0; at < words; at++) {
        uint64_t word = others ? ~bits[at] : bits[at];
        if (at == words - 1 && n % 64)
            word &= ((uint64_t)1 << n % 64) - 1;
        for (; word; word &= word - 1)
            *out++ = (uint32_t)(at * 64 + (uint64_t)__builtin_ctzll(word));
    }
    free(bits);
    return 0;
}

static int aps_random_indices(uint64_t seed, uint64_t n, uint32_t *out, ptrdiff_t k)
{
    const ptrdiff_t others = (ptrdiff_t)n - k;
    if (k == 0)
        return 0;
    const aps_stream stream = { aps_mix(seed), n, (uint32_t)(((uint64_t)1 << 32) % n) };
    if ((uint64_t)k < n / 64) /* a bit for each would be more than 8 bytes for one of k */
        return aps_draw_few(stream, out, k);
    return aps_draw_many(stream, out, k <= others ? k : others, k > others);
}

#endif
