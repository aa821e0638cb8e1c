/* The loops of 2bit, 1bit and onebit; included once for each variant by quantize_variant.h, with
 * AVX2 where APS_VECTORS says so. The first value of a byte has its top bits. Payloads are whole
 * words of 32 bits; what is behind the last value is 0.
 */

#if APS_VECTORS
/* Eight values, the gradient's with what was kept of those before. */
APS_TARGET static APS_INLINE __m256 APS_FN(load_x)(const aps_f32 *residual, const aps_f32 *g,
                                                   ptrdiff_t at, const int kept)
{
    const __m256 x = _mm256_loadu_ps((const float *)(g + at));
    return kept ? _mm256_add_ps(x, _mm256_loadu_ps((const float *)(residual + at))) : x;
}

/* What was found, and whether one of these is NaN. */
APS_TARGET static APS_INLINE __m256 APS_FN(or_nan)(__m256 found, __m256 a, __m256 b)
{
    return _mm256_or_ps(found, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}
#endif

/* ---- 2bit: 11 is +t, 10 is -t, 00 is nothing */

#if APS_VECTORS
/* Codes of eight values, one in each 32 bits; NaN compares false and is sent as nothing. */
APS_TARGET static APS_INLINE __m256i APS_FN(code_2bit)(aps_f32 *residual, __m256 x, ptrdiff_t at,
                                                       __m256 t, __m256 minus, const int kept)
{
    const __m256 up = _mm256_cmp_ps(x, t, _CMP_GE_OQ), down = _mm256_cmp_ps(x, minus, _CMP_LE_OQ);
    if (kept) {
        const __m256 sent = _mm256_or_ps(_mm256_and_ps(up, t), _mm256_and_ps(down, minus));
        _mm256_storeu_ps((float *)(residual + at), _mm256_sub_ps(x, sent));
    }
    return _mm256_or_si256(_mm256_and_si256(_mm256_castps_si256(up), _mm256_set1_epi32(3)),
                           _mm256_and_si256(_mm256_castps_si256(down), _mm256_set1_epi32(2)));
}
#endif

APS_TARGET static APS_INLINE void APS_FN(encode_2bit_loop)(uint8_t *payload, aps_f32 *residual,
                                                           const aps_f32 *g, float t, ptrdiff_t n,
                                                           const int kept)
{
    ptrdiff_t i = 0;
#if APS_VECTORS
    const __m256 plus = _mm256_set1_ps(t), minus = _mm256_set1_ps(-t);
    /* four codes of a byte, weighed by their places and summed in pairs twice */
    const __m256i places = _mm256_set1_epi32(0x01041040), ones = _mm256_set1_epi16(1);
    const __m256i low = _mm256_set1_epi32(0x0c080400);
    __m256 found = _mm256_setzero_ps();
    for (; i + 32 <= n; i += 32) {
        __m256i codes[4];
        __m256 x[4];
        for (int k = 0; k < 4; k++) {
            x[k] = APS_FN(load_x)(residual, g, i + 8 * k, kept);
            codes[k] = APS_FN(code_2bit)(residual, x[k], i + 8 * k, plus, minus, kept);
        }
        found = APS_FN(or_nan)(APS_FN(or_nan)(found, x[0], x[1]), x[2], x[3]);
        const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]),
                                                  _mm256_packs_epi32(codes[2], codes[3]));
        const __m256i bytes = _mm256_madd_epi16(_mm256_maddubs_epi16(packed, places), ones);
        /* the lower lane has bytes 0, 2, 4, 6 of the turn, the upper one 1, 3, 5, 7 */
        const __m256i lanes = _mm256_shuffle_epi8(bytes, low);
        const __m128i even = _mm256_castsi256_si128(lanes);
        const __m128i odd = _mm256_extracti128_si256(lanes, 1);
        _mm_storel_epi64((__m128i *)(void *)(payload + i / 4), _mm_unpacklo_epi8(even, odd));
    }
    if (kept && _mm256_movemask_ps(found))
        aps_make_one_nan(residual, i);
#endif
    const uint32_t t_bits = aps_f32_bits(t);
    const ptrdiff_t end = (n + 15) / 16 * 16;
    for (; i < end; i += 4) {
        uint32_t byte = 0;
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            byte <<= 2;
            if (i + k >= n)
                continue;
            const float x = kept ? g[i + k] + residual[i + k] : g[i + k];
            const uint32_t up = x >= t, down = x <= -t;
            byte |= (up | down) << 1 | up;
            const uint32_t sent = (t_bits & aps_mask((int)(up | down))) | down << 31;
            if (kept)
                residual[i + k] = x - aps_as_f32(sent);
            sum += x;
        }
        if (kept && sum != sum) /* one of them may be NaN */
            aps_make_one_nan(residual + i, n - i < 4 ? n - i : 4);
        payload[i / 4] = (uint8_t)byte;
    }
}

APS_TARGET static void APS_FN(encode_2bit)(uint8_t *payload, aps_f32 *residual, const aps_f32 *g,
                                           float t, ptrdiff_t n)
{
    APS_BOTH(encode_2bit_loop, residual, payload, residual, g, t, n);
}

APS_TARGET static APS_INLINE void APS_FN(decode_2bit_loop)(aps_f32 *out, const uint8_t *payload,
                                                           float t, ptrdiff_t n, const int add)
{
    ptrdiff_t i = 0;
    const float values[4] = { 0, 0, -t, t }; /* 01 is never sent; MXNet too reads nothing there */
#if APS_VECTORS
    /* the permutation looks at three bits of an index: at a code and a bit that is not its own */
    const __m256 table = _mm256_setr_ps(0, 0, -t, t, 0, 0, -t, t);
    const __m256i first = _mm256_setr_epi32(6, 4, 2, 0, 14, 12, 10, 8);
    const __m256i second = _mm256_setr_epi32(22, 20, 18, 16, 30, 28, 26, 24);
    for (; i + 16 <= n; i += 16) {
        uint32_t word;
        memcpy(&word, payload + i / 4, sizeof word);
        const __m256i codes = _mm256_set1_epi32((int)word);
        __m256 a = _mm256_permutevar8x32_ps(table, _mm256_srlv_epi32(codes, first));
        __m256 b = _mm256_permutevar8x32_ps(table, _mm256_srlv_epi32(codes, second));
        if (add) {
            a = _mm256_add_ps(_mm256_loadu_ps((const float *)(out + i)), a);
            b = _mm256_add_ps(_mm256_loadu_ps((const float *)(out + i + 8)), b);
        }
        _mm256_storeu_ps((float *)(out + i), a);
        _mm256_storeu_ps((float *)(out + i + 8), b);
    }
#endif
    for (; i < n; i++) {
        const float value = values[(payload[i / 4] >> (6 - i % 4 * 2)) & 3];
        out[i] = add ? out[i] + value : value;
    }
}

APS_TARGET static void APS_FN(decode_2bit)(aps_f32 *out, const uint8_t *payload, float t,
                                           ptrdiff_t n)
{
    APS_FN(decode_2bit_loop)(out, payload, t, n, APS_DECODE);
}

APS_TARGET static void APS_FN(add_2bit)(aps_f32 *acc, const uint8_t *payload, float t, ptrdiff_t n)
{
    APS_FN(decode_2bit_loop)(acc, payload, t, n, APS_ADD);
}

/* ---- signs: 1bit sends +1 above a threshold, onebit +scale from 0 on; else the negative */

APS_TARGET static APS_INLINE void APS_FN(encode_signs)(uint8_t *payload, aps_f32 *residual,
                                                       const aps_f32 *g, float t, float scale,
                                                       ptrdiff_t n, const int is_1bit,
                                                       const int kept)
{
    /* onebit_prepare has added the residual, which is g itself in onebit, or NULL */
    const int fed = is_1bit && kept;
    ptrdiff_t i = 0;
#if APS_VECTORS
    const __m256 least = _mm256_set1_ps(t);
    const __m256 plus = _mm256_set1_ps(scale), minus = _mm256_set1_ps(-scale);
    const __m256i backwards = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    __m256 found = _mm256_setzero_ps();
    for (; i + 32 <= n; i += 32) {
        uint32_t word = 0;
        __m256 x[4];
        for (int k = 0; k < 4; k++) {
            const ptrdiff_t at = i + 8 * k;
            x[k] = APS_FN(load_x)(residual, g, at, fed);
            const __m256 up = is_1bit ? _mm256_cmp_ps(x[k], least, _CMP_GT_OQ)
                                      : _mm256_cmp_ps(x[k], least, _CMP_GE_OQ);
            if (kept)
                _mm256_storeu_ps((float *)(residual + at),
                                 _mm256_sub_ps(x[k], _mm256_blendv_ps(minus, plus, up)));
            const __m256 turned = _mm256_permutevar8x32_ps(up, backwards);
            word |= (uint32_t)_mm256_movemask_ps(turned) << (8 * k);
        }
        memcpy(payload + i / 8, &word, sizeof word);
        found = APS_FN(or_nan)(APS_FN(or_nan)(found, x[0], x[1]), x[2], x[3]);
    }
    if (kept && _mm256_movemask_ps(found))
        aps_make_one_nan(residual, i);
#endif
    const uint32_t bits = aps_f32_bits(scale);
    const ptrdiff_t end = (n + 31) / 32 * 32;
    for (; i < end; i += 8) {
        uint32_t byte = 0;
        float sum = 0;
        for (int k = 0; k < 8; k++) {
            byte <<= 1;
            if (i + k >= n)
                continue;
            const float x = fed ? g[i + k] + residual[i + k] : g[i + k];
            const uint32_t up = is_1bit ? x > t : x >= t;
            byte |= up;
            if (kept)
                residual[i + k] = x - aps_as_f32(bits ^ (up ^ 1u) << 31);
            sum += x;
        }
        if (kept && sum != sum) /* one of them may be NaN */
            aps_make_one_nan(residual + i, n - i < 8 ? n - i : 8);
        payload[i / 8] = (uint8_t)byte;
    }
}

APS_TARGET static void APS_FN(encode_1bit)(uint8_t *payload, aps_f32 *residual, const aps_f32 *g,
                                           float t, ptrdiff_t n)
{
    APS_BOTH(encode_signs, residual, payload, residual, g, t, 1, n, 1);
}

APS_TARGET static void APS_FN(encode_onebit)(uint8_t *payload, aps_f32 *residual, const aps_f32 *g,
                                             float scale, ptrdiff_t n)
{
    APS_BOTH(encode_signs, residual, payload, residual, g, 0, scale, n, 0);
}

APS_TARGET static APS_INLINE void APS_FN(signs_loop)(aps_f32 *out, const uint8_t *payload,
                                                     float scale, ptrdiff_t n, const int add)
{
    ptrdiff_t i = 0;
#if APS_VECTORS
    const __m256 plus = _mm256_set1_ps(scale);
    const __m256i sign = _mm256_set1_epi32(INT32_MIN);
    __m256i ups[4]; /* how far the bits of eight values are below the top of a word */
    for (int k = 0; k < 4; k++)
        ups[k] = _mm256_sub_epi32(_mm256_setr_epi32(24, 25, 26, 27, 28, 29, 30, 31),
                                  _mm256_set1_epi32(8 * k));
    for (; i + 32 <= n; i += 32) {
        uint32_t word;
        memcpy(&word, payload + i / 8, sizeof word);
        const __m256i bits = _mm256_set1_epi32((int)~word);
        for (int k = 0; k < 4; k++) {
            const __m256i minus = _mm256_and_si256(_mm256_sllv_epi32(bits, ups[k]), sign);
            __m256 x = _mm256_xor_ps(plus, _mm256_castsi256_ps(minus));
            if (add)
                x = _mm256_add_ps(_mm256_loadu_ps((const float *)(out + i + 8 * k)), x);
            _mm256_storeu_ps((float *)(out + i + 8 * k), x);
        }
    }
#endif
    const uint32_t plus_bits = aps_f32_bits(scale);
    for (; i < n; i++) {
        const uint32_t up = (payload[i / 8] >> (7 - i % 8)) & 1u;
        const float value = aps_as_f32(plus_bits ^ (up ^ 1u) << 31);
        out[i] = add ? out[i] + value : value;
    }
}

APS_TARGET static void APS_FN(decode_signs)(aps_f32 *out, const uint8_t *payload, float scale,
                                            ptrdiff_t n)
{
    APS_FN(signs_loop)(out, payload, scale, n, APS_DECODE);
}

APS_TARGET static void APS_FN(add_signs)(aps_f32 *acc, const uint8_t *payload, float scale,
                                         ptrdiff_t n)
{
    APS_FN(signs_loop)(acc, payload, scale, n, APS_ADD);
}

/* residual += g; the sum of magnitudes in eight partial sums, in every variant the same (see
 * squares of optim_body.h). */
APS_TARGET static APS_INLINE double APS_FN(prepare_loop)(aps_f32 *residual, const aps_f32 *g,
                                                         ptrdiff_t n, const int kept)
{
    double s[8] = {0};
    ptrdiff_t i = 0;
#if APS_VECTORS
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MAX));
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
    for (; i + 8 <= n; i += 8) {
        const __m256 x = APS_FN(load_x)(residual, g, i, kept);
        if (kept)
            _mm256_storeu_ps((float *)(residual + i), x);
        const __m256 m = _mm256_and_ps(x, magnitude);
        low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(m)));
        high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(m, 1)));
    }
    _mm256_storeu_pd(s, low);
    _mm256_storeu_pd(s + 4, high);
#else
    for (; i + 8 <= n; i += 8)
        for (int lane = 0; lane < 8; lane++) {
            const float x = kept ? g[i + lane] + residual[i + lane] : g[i + lane];
            if (kept)
                residual[i + lane] = x;
            s[lane] += (double)fabsf(x);
        }
#endif
    for (; i < n; i++) {
        const float x = kept ? g[i] + residual[i] : g[i];
        if (kept)
            residual[i] = x;
        s[i % 8] += (double)fabsf(x);
    }
    const double sum = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    if (kept && sum != sum) /* infinite magnitudes alone make no NaN */
        aps_make_one_nan(residual, n);
    return sum;
}

APS_TARGET static double APS_FN(onebit_prepare)(aps_f32 *residual, const aps_f32 *g, ptrdiff_t n)
{
    return APS_BOTH(prepare_loop, residual, residual, g, n);
}
