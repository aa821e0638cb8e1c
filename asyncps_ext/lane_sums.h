/* Counts that were taken in vectors, in one number; included once for each variant with AVX2. */

APS_TARGET static APS_INLINE uint32_t APS_FN(sum_of_lanes)(const __m256i sums[4])
{
    uint32_t each[8], count = 0;
    _mm256_storeu_si256((__m256i *)(void *)each,
                        _mm256_add_epi32(_mm256_add_epi32(sums[0], sums[1]),
                                         _mm256_add_epi32(sums[2], sums[3])));
    for (int k = 0; k < 8; k++)
        count += each[k];
    return count;
}
