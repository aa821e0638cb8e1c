/* Whether numbers ascend, each once, within a limit: rows of tables, elements of sparse arrays. */
#ifndef ASYNCPS_ASCENDING_H
#define ASYNCPS_ASCENDING_H

#include "variants.h"

/* -1, or the place of the first number that is negative, at or past limit, or not above the one
 * before. Strips are judged as a whole without a branch, and only a bad one is looked through.
 */
#define APS_CHECK_STRIP 256
#define APS_CHECK_IDS(name, T)                                                               \
    static APS_UNUSED ptrdiff_t name(const void *ids_, ptrdiff_t n, int64_t limit)           \
    {                                                                                        \
        const T *ids = (const T *)ids_;                                                      \
        int64_t before = -1;                                                                 \
        ptrdiff_t good = 0;                                                                  \
        for (; good + APS_CHECK_STRIP < n; good += APS_CHECK_STRIP) {                        \
            int falls = (int64_t)ids[good] <= before;                                        \
            for (ptrdiff_t i = good; i < good + APS_CHECK_STRIP; i++)                        \
                falls |= ids[i + 1] <= ids[i];                                               \
            if (falls || (int64_t)ids[good + APS_CHECK_STRIP] >= limit)                      \
                break;                                                                       \
            before = (int64_t)ids[good + APS_CHECK_STRIP - 1];                               \
        }                                                                                    \
        for (ptrdiff_t i = good; i < n; i++) {                                               \
            const int64_t id = (int64_t)ids[i];                                              \
            if (id <= before || id >= limit)                                                 \
                return i;                                                                    \
            before = id;                                                                     \
        }                                                                                    \
        return -1;                                                                           \
    }

APS_CHECK_IDS(aps_check_ids_i64, aps_i64)
APS_CHECK_IDS(aps_check_ids_u32, aps_u32)
#undef APS_CHECK_IDS

#endif
