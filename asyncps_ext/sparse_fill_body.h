/* The loops of asyncps_ext.sparse_fill; included once for each variant (each_variant.h).
 *
 * Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011):
 * the counter is (row, lower half; row, upper half; block of four elements; 0), the key comes from
 * the caller. Blocks of a strip are independent, so the rounds become vector code.
 */

APS_TARGET static APS_INLINE void APS_FN(words)(int64_t id, uint32_t first, ptrdiff_t blocks,
                                                uint64_t key, uint32_t *words)
{
    APS_INDEPENDENT
    for (ptrdiff_t b = 0; b < blocks; b++) {
        uint32_t x0 = (uint32_t)(uint64_t)id, x1 = (uint32_t)((uint64_t)id >> 32);
        uint32_t x2 = first + (uint32_t)b, x3 = 0;
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < 10; round++) {
            const uint64_t p0 = (uint64_t)x0 * 0xD2511F53u, p1 = (uint64_t)x2 * 0xCD9E8D57u;
            x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
            x1 = (uint32_t)p1;
            x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
            x3 = (uint32_t)p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        words[4 * b] = x0;
        words[4 * b + 1] = x1;
        words[4 * b + 2] = x2;
        words[4 * b + 3] = x3;
    }
}

/* Numbers in (0, 1), the middles of 2^32 equal parts. */
APS_TARGET static APS_INLINE void APS_FN(shape)(const uint32_t *words, double *values,
                                                ptrdiff_t n, double scale, const int normal)
{
    if (!normal) {
        for (ptrdiff_t i = 0; i < n; i++) {
            const double u = ((double)words[i] + 0.5) * 0x1p-32;
            values[i] = (2.0 * u - 1.0) * scale;
        }
        return;
    }
    for (ptrdiff_t i = 0; i < n; i++)
        values[i] = aps_middle(((double)words[i] + 0.5) * 0x1p-32 - 0.5);
    for (ptrdiff_t i = 0; i < n; i++) {
        const double u = ((double)words[i] + 0.5) * 0x1p-32;
        if (u < APS_TAIL)
            values[i] = aps_tail(u);
        else if (u > 1.0 - APS_TAIL)
            values[i] = -aps_tail(1.0 - u);
    }
    for (ptrdiff_t i = 0; i < n; i++)
        values[i] = values[i] * scale;
}

APS_TARGET static APS_INLINE void APS_FN(fill)(void *out_, int wide, const aps_i64 *ids,
                                               ptrdiff_t n, ptrdiff_t width, uint64_t key,
                                               double scale, const int normal)
{
    uint32_t words[APS_STRIP];
    double values[APS_STRIP];
    for (ptrdiff_t i = 0; i < n; i++) {
        for (ptrdiff_t at = 0; at < width; at += APS_STRIP) {
            const ptrdiff_t many = width - at < APS_STRIP ? width - at : APS_STRIP;
            APS_FN(words)(ids[i], (uint32_t)(at / 4), (many + 3) / 4, key, words);
            APS_FN(shape)(words, values, many, scale, normal);
            if (wide) {
                memcpy((aps_f64 *)out_ + i * width + at, values, (size_t)many * sizeof(double));
                continue;
            }
            aps_f32 *out = (aps_f32 *)out_ + i * width + at;
            for (ptrdiff_t j = 0; j < many; j++)
                out[j] = (float)values[j];
        }
    }
}

APS_TARGET static void APS_FN(uniform)(void *out, int wide, const aps_i64 *ids, ptrdiff_t n,
                                       ptrdiff_t width, uint64_t key, double scale)
{
    APS_FN(fill)(out, wide, ids, n, width, key, scale, 0);
}

APS_TARGET static void APS_FN(normal)(void *out, int wide, const aps_i64 *ids, ptrdiff_t n,
                                      ptrdiff_t width, uint64_t key, double scale)
{
    APS_FN(fill)(out, wide, ids, n, width, key, scale, 1);
}

static const aps_fill_table APS_FN(table) = { APS_VARIANT, APS_FN(uniform), APS_FN(normal) };
