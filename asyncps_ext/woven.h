/* Conversions of arrays far larger than the caches: four pages in turn, and past the caches.
 *
 * One core waits for memory most of such a conversion. Reading four pages in turn keeps more lines
 * under way than reading one, and a line that is stored past the caches is not read before. Both
 * are what memcpy does with arrays of that size. Measured in docs/BENCHMARKS.md.
 */
#ifndef ASYNCPS_WOVEN_H
#define ASYNCPS_WOVEN_H

#include "variants.h"

/* From here on a conversion followed by a reader of its result is faster so: 16 MiB of float32. */
#define APS_WOVEN_FROM ((ptrdiff_t)4 << 20)

/* Pages in turn, elements of one page (4 KiB of the wider dtype), and those of one turn: with 256
 * or more it is a seventh slower. */
#define APS_WOVEN_PAGES 4
#define APS_WOVEN_PAGE ((ptrdiff_t)1024)
#define APS_WOVEN_TURN ((ptrdiff_t)64)

typedef void (*aps_binary)(void *out, const void *x, ptrdiff_t n);

#if defined(__x86_64__)
#include <emmintrin.h>

/* Copies whole lines of 64 bytes to a line of `out`, without reading it into a cache. */
static APS_INLINE void aps_store_past(char *out, const char *lines, ptrdiff_t bytes)
{
    for (ptrdiff_t i = 0; i < bytes; i += 16)
        _mm_stream_si128((__m128i *)(void *)(out + i),
                         _mm_load_si128((const __m128i *)(const void *)(lines + i)));
}

/* `out` begins a line, and n is a multiple of the elements of all pages. */
static APS_UNUSED void aps_weave(aps_binary kernel, char *out, ptrdiff_t out_size, const char *x,
                                 ptrdiff_t x_size, ptrdiff_t n)
{
    const ptrdiff_t all = APS_WOVEN_PAGES * APS_WOVEN_PAGE;
    __attribute__((aligned(64))) char lines[APS_WOVEN_TURN * 4];
    for (ptrdiff_t first = 0; first + all <= n; first += all) {
        const int more = first + 2 * all <= n;
        for (ptrdiff_t turn = 0; turn < APS_WOVEN_PAGE; turn += APS_WOVEN_TURN) {
            for (ptrdiff_t page = 0; page < all; page += APS_WOVEN_PAGE) {
                const ptrdiff_t at = first + page + turn;
                const char *from = x + at * x_size;
                for (ptrdiff_t i = 0; more && i < APS_WOVEN_TURN * x_size; i += 64)
                    _mm_prefetch(from + all * x_size + i, _MM_HINT_T0);
                kernel(lines, from, APS_WOVEN_TURN);
                aps_store_past(out + at * out_size, lines, APS_WOVEN_TURN * out_size);
            }
        }
    }
    _mm_sfence(); /* another thread that is told of the result sees it */
}
#endif

/* out = kernel(x), n elements of out_size from x_size bytes (2 or 4) that lie apart. */
static APS_UNUSED void aps_convert(aps_binary kernel, void *out_, ptrdiff_t out_size,
                                   const void *x_, ptrdiff_t x_size, ptrdiff_t n)
{
    char *out = (char *)out_;
    const char *x = (const char *)x_;
    ptrdiff_t done = 0;
#if defined(__x86_64__)
    const ptrdiff_t gap = (ptrdiff_t)(-(uintptr_t)out & 63); /* to the first whole line */
    if (n >= APS_WOVEN_FROM && gap % out_size == 0) {
        const ptrdiff_t all = APS_WOVEN_PAGES * APS_WOVEN_PAGE, head = gap / out_size;
        const ptrdiff_t woven = (n - head) / all * all;
        kernel(out, x, head);
        aps_weave(kernel, out + head * out_size, out_size, x + head * x_size, x_size, woven);
        done = head + woven;
    }
#endif
    kernel(out + done * out_size, x + done * x_size, n - done);
}

#endif
