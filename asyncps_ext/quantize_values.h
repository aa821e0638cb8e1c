/* The loops of int8 blocks, and of f16 and bf16 with what is kept; included once for each variant
 * by quantize_variant.h behind quantize_bits.h.
 */

/* ---- int8: 256 values share a scale, the largest magnitude / 127 */

/* x of a block to a place of its own; returns the bits of the largest magnitude, which are in the
 * order of the floats, and NaN above all. */
APS_TARGET static APS_INLINE int32_t APS_FN(gather_block)(float *x, const aps_f32 *residual,
                                                          const aps_f32 *g, ptrdiff_t n,
                                                          const int kept)
{
    int32_t most = 0;
    ptrdiff_t i = 0;
#if APS_VECTORS
    const __m256i magnitude = _mm256_set1_epi32(INT32_MAX);
    __m256i highest = _mm256_setzero_si256();
    for (; i + 8 <= n; i += 8) {
        const __m256 value = APS_FN(load_x)(residual, g, i, kept);
        _mm256_storeu_ps(x + i, value);
        highest = _mm256_max_epi32(highest,
                                   _mm256_and_si256(_mm256_castps_si256(value), magnitude));
    }
    int32_t each[8];
    _mm256_storeu_si256((__m256i *)(void *)each, highest);
    for (int k = 0; k < 8; k++)
        most = each[k] > most ? each[k] : most;
#endif
    for (; i < n; i++) {
        x[i] = kept ? g[i] + residual[i] : g[i];
        const int32_t bits = (int32_t)(aps_f32_bits(x[i]) & 0x7fffffffu);
        most = bits > most ? bits : most;
    }
    return most;
}

#if APS_VECTORS
/* Eight quotients, rounded: up to 190 where the scale has lost digits, below 2^-126. */
APS_TARGET static APS_INLINE __m256i APS_FN(round_int8)(const float *x, aps_f32 *residual,
                                                        ptrdiff_t at, __m256 unit, const int kept)
{
    const __m256 value = _mm256_loadu_ps(x + at);
    const __m256 ratio = _mm256_min_ps(_mm256_div_ps(value, unit), _mm256_set1_ps(127.0f));
    const __m256i q = _mm256_cvtps_epi32(_mm256_max_ps(ratio, _mm256_set1_ps(-127.0f)));
    if (kept) {
        const __m256 sent = _mm256_mul_ps(_mm256_cvtepi32_ps(q), unit);
        _mm256_storeu_ps((float *)(residual + at), _mm256_sub_ps(value, sent));
    }
    return q;
}
#endif

APS_TARGET static APS_INLINE void APS_FN(round_block)(aps_i8 *payload, aps_f32 *residual,
                                                      const float *x, float unit, ptrdiff_t n,
                                                      const int kept)
{
    ptrdiff_t i = 0;
#if APS_VECTORS
    const __m256 units = _mm256_set1_ps(unit);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packing keeps to lanes */
    for (; i + 32 <= n; i += 32) {
        __m256i q[4];
        for (int k = 0; k < 4; k++)
            q[k] = APS_FN(round_int8)(x, residual, i + 8 * k, units, kept);
        const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]),
                                                  _mm256_packs_epi32(q[2], q[3]));
        _mm256_storeu_si256((__m256i *)(void *)(payload + i),
                            _mm256_permutevar8x32_epi32(packed, order));
    }
#endif
    /* adding 1.5 * 2^23 rounds to whole numbers, ties to even, and leaves them in the low bits */
    const float shift = 12582912.0f;
    APS_INDEPENDENT
    for (ptrdiff_t j = i; j < n; j++) {
        int32_t q = (int32_t)(aps_f32_bits(x[j] / unit + shift) - aps_f32_bits(shift));
        q = q > 127 ? 127 : q;
        q = q < -127 ? -127 : q;
        payload[j] = (int8_t)q;
        if (kept)
            residual[j] = x[j] - (float)q * unit;
    }
}

APS_TARGET static APS_INLINE void APS_FN(encode_block)(aps_i8 *payload, aps_f32 *scale,
                                                       aps_f32 *residual, const aps_f32 *g,
                                                       ptrdiff_t n, const int kept)
{
    float x[APS_BLOCK];
    const uint32_t most = (uint32_t)APS_FN(gather_block)(x, residual, g, n, kept);
    float unit = aps_as_f32(most) / 127.0f;
    unit = unit > APS_MOST_SCALE ? APS_MOST_SCALE : unit;
    unit = most < APS_NONFINITE ? unit : aps_as_f32(APS_NAN);
    *scale = unit;
    if (unit > 0) {
        APS_FN(round_block)(payload, residual, x, unit, n, kept);
        return;
    }
    /* all magnitudes are below 2^-143, and all is kept; or the unit is the NaN that the whole block
     * becomes */
    for (ptrdiff_t i = 0; i < n; i++) {
        payload[i] = 0;
        if (kept)
            residual[i] = unit == 0 ? x[i] : unit;
    }
}

APS_TARGET static APS_INLINE void APS_FN(encode_int8_loop)(aps_i8 *payload, aps_f32 *scales,
                                                           aps_f32 *residual, const aps_f32 *g,
                                                           ptrdiff_t n, const int kept)
{
    ptrdiff_t i = 0;
    for (; i + APS_BLOCK <= n; i += APS_BLOCK)
        APS_FN(encode_block)(payload + i, scales + i / APS_BLOCK, kept ? residual + i : NULL, g + i,
                             APS_BLOCK, kept);
    if (i < n)
        APS_FN(encode_block)(payload + i, scales + i / APS_BLOCK, kept ? residual + i : NULL, g + i,
                             n - i, kept);
}

APS_TARGET static void APS_FN(encode_int8)(aps_i8 *payload, aps_f32 *scales, aps_f32 *residual,
                                           const aps_f32 *g, ptrdiff_t n)
{
    APS_BOTH(encode_int8_loop, residual, payload, scales, residual, g, n);
}

APS_TARGET static APS_INLINE void APS_FN(decode_int8_loop)(aps_f32 *out, const aps_i8 *payload,
                                                           const aps_f32 *scales, ptrdiff_t n,
                                                           const int add)
{
    for (ptrdiff_t start = 0; start < n; start += APS_BLOCK) {
        const float unit = scales[start / APS_BLOCK];
        const ptrdiff_t end = n - start < APS_BLOCK ? n : start + APS_BLOCK;
        APS_INDEPENDENT
        for (ptrdiff_t i = start; i < end; i++) {
            const float value = (float)payload[i] * unit;
            out[i] = add ? out[i] + value : value;
        }
    }
}

APS_TARGET static void APS_FN(decode_int8)(aps_f32 *out, const aps_i8 *payload,
                                           const aps_f32 *scales, ptrdiff_t n)
{
    APS_FN(decode_int8_loop)(out, payload, scales, n, APS_DECODE);
}

APS_TARGET static void APS_FN(add_int8)(aps_f32 *acc, const aps_i8 *payload, const aps_f32 *scales,
                                        ptrdiff_t n)
{
    APS_FN(decode_int8_loop)(acc, payload, scales, n, APS_ADD);
}

/* ---- f16 and bf16: what is finite stays so, and the residual keeps what does not fit */

APS_TARGET static APS_INLINE void APS_FN(plain_f16)(aps_u16 *out, aps_f32 *residual,
                                                    const aps_f32 *g, ptrdiff_t i, ptrdiff_t end,
                                                    const int kept)
{
    APS_INDEPENDENT
    for (; i < end; i++) {
        const float x = kept ? g[i] + residual[i] : g[i];
        const uint16_t half = aps_sent_f16(x);
        out[i] = half;
        if (kept)
            residual[i] = aps_left_half(x, aps_f16_to_f32(half));
    }
}

APS_TARGET static APS_INLINE void APS_FN(encode_f16_loop)(uint8_t *payload, aps_f32 *residual,
                                                          const aps_f32 *g, ptrdiff_t n,
                                                          const int kept)
{
    aps_u16 *out = (aps_u16 *)(void *)payload;
    ptrdiff_t i = 0;
#if APS_VECTORS
    const __m256i magnitude = _mm256_set1_epi32(INT32_MAX);
    const __m256i most = _mm256_set1_epi32(APS_OVER_F16 - 1); /* above is rare: left to plain C */
    for (; i + 16 <= n; i += 16) {
        const __m256 x = APS_FN(load_x)(residual, g, i, kept);
        const __m256 y = APS_FN(load_x)(residual, g, i + 8, kept);
        const __m256i highest =
            _mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(x), magnitude),
                             _mm256_and_si256(_mm256_castps_si256(y), magnitude));
        const __m256i over = _mm256_cmpgt_epi32(highest, most);
        if (!_mm256_testz_si256(over, over)) {
            APS_FN(plain_f16)(out, residual, g, i, i + 16, kept);
            continue;
        }
        const int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        const __m128i low = _mm256_cvtps_ph(x, nearest), high = _mm256_cvtps_ph(y, nearest);
        _mm_storeu_si128((__m128i *)(void *)(out + i), low);
        _mm_storeu_si128((__m128i *)(void *)(out + i + 8), high);
        if (!kept)
            continue;
        _mm256_storeu_ps((float *)(residual + i), _mm256_sub_ps(x, _mm256_cvtph_ps(low)));
        _mm256_storeu_ps((float *)(residual + i + 8), _mm256_sub_ps(y, _mm256_cvtph_ps(high)));
    }
#endif
    APS_FN(plain_f16)(out, residual, g, i, n, kept);
}

APS_TARGET static void APS_FN(encode_f16)(uint8_t *payload, aps_f32 *residual, const aps_f32 *g,
                                          float unused, ptrdiff_t n)
{
    (void)unused;
    APS_BOTH(encode_f16_loop, residual, payload, residual, g, n);
}

APS_TARGET static APS_INLINE void APS_FN(plain_bf16)(aps_u16 *out, aps_f32 *residual,
                                                     const aps_f32 *g, ptrdiff_t i, ptrdiff_t end,
                                                     const int kept)
{
    APS_INDEPENDENT
    for (; i < end; i++) {
        const float x = kept ? g[i] + residual[i] : g[i];
        const uint16_t half = aps_sent_bf16(x);
        out[i] = half;
        if (kept)
            residual[i] = aps_left_half(x, aps_as_f32((uint32_t)half << 16));
    }
}

APS_TARGET static APS_INLINE void APS_FN(encode_bf16_loop)(uint8_t *payload, aps_f32 *residual,
                                                           const aps_f32 *g, ptrdiff_t n,
                                                           const int kept)
{
    aps_u16 *out = (aps_u16 *)(void *)payload;
    ptrdiff_t i = 0;
#if APS_VECTORS
    const __m256i magnitude = _mm256_set1_epi32(INT32_MAX), one = _mm256_set1_epi32(1);
    const __m256i below_half = _mm256_set1_epi32(0x7fff);
    const __m256i most = _mm256_set1_epi32(APS_OVER_BF16 - 1); /* above is rare, as before */
    for (; i + 16 <= n; i += 16) {
        __m256i above = _mm256_setzero_si256(), halves[2];
        __m256 x[2];
        for (int k = 0; k < 2; k++) {
            x[k] = APS_FN(load_x)(residual, g, i + 8 * k, kept);
            const __m256i bits = _mm256_castps_si256(x[k]);
            const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
            above = _mm256_or_si256(
                above, _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), most));
            halves[k] = _mm256_srli_epi32(
                _mm256_add_epi32(_mm256_add_epi32(bits, below_half), odd), 16);
        }
        if (!_mm256_testz_si256(above, above)) {
            APS_FN(plain_bf16)(out, residual, g, i, i + 16, kept);
            continue;
        }
        for (int k = 0; kept && k < 2; k++) {
            const __m256 sent = _mm256_castsi256_ps(_mm256_slli_epi32(halves[k], 16));
            _mm256_storeu_ps((float *)(residual + i + 8 * k), _mm256_sub_ps(x[k], sent));
        }
        /* packing keeps to lanes */
        const __m256i packed = _mm256_packus_epi32(halves[0], halves[1]);
        _mm256_storeu_si256((__m256i *)(void *)(out + i),
                            _mm256_permute4x64_epi64(packed, 0xd8));
    }
#endif
    APS_FN(plain_bf16)(out, residual, g, i, n, kept);
}

APS_TARGET static void APS_FN(encode_bf16)(uint8_t *payload, aps_f32 *residual, const aps_f32 *g,
                                           float unused, ptrdiff_t n)
{
    (void)unused;
    APS_BOTH(encode_bf16_loop, residual, payload, residual, g, n);
}
