/* Rows by number, where they lie: what kernels of tables share. */
#ifndef ASYNCPS_SPARSE_ROWS_H
#define ASYNCPS_SPARSE_ROWS_H

#include "variants.h"

/* Rows lie in blocks of 2^shift rows; a table of one block has a shift beyond every slot. */
#define APS_ONE_BLOCK 62
/* Rows asked for ahead of their turn: about the time of one miss. */
#define APS_AHEAD 12
#define APS_LINE 64

typedef struct {
    char **blocks;
    int shift;
    ptrdiff_t row; /* bytes of a row */
    int64_t rows;  /* of all blocks */
} aps_rows;

static APS_INLINE char *aps_row_at(const aps_rows *t, int64_t slot)
{
    const int64_t within = slot & (((int64_t)1 << t->shift) - 1);
    return t->blocks[slot >> t->shift] + within * t->row;
}

/* Slots are checked at the door; one that somebody changes during the call is passed over. */
static APS_INLINE int aps_has_row(const aps_rows *t, int64_t slot)
{
    return (uint64_t)slot < (uint64_t)t->rows;
}

/* At most four lines: the processor itself goes on with a long row. */
static APS_INLINE void aps_ask_for(const char *row, ptrdiff_t bytes)
{
    for (ptrdiff_t at = 0; at < bytes && at < 4 * APS_LINE; at += APS_LINE)
        __builtin_prefetch(row + at);
}

/* Ahead of its turn, if there is such a row. */
static APS_INLINE void aps_ask_for_row(const aps_rows *t, int64_t slot)
{
    if (aps_has_row(t, slot))
        aps_ask_for(aps_row_at(t, slot), t->row);
}

/* -1, or the index of the first slot outside of 0..rows-1. */
static APS_UNUSED ptrdiff_t aps_check_slots(const aps_i64 *slots, ptrdiff_t n, int64_t rows)
{
    for (ptrdiff_t i = 0; i < n; i++)
        if ((uint64_t)slots[i] >= (uint64_t)rows)
            return i;
    return -1;
}

#endif
