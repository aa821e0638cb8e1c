/* A step on rows of tables by slot, each where it lies. */
#ifndef ASYNCPS_OPTIM_ROWS_H
#define ASYNCPS_OPTIM_ROWS_H

#include "optim_kernels.h"
#include "sparse_rows.h"

/* In `given` w, m, v and d are tables, or NULL where the step has none; g is n rows side by side.
 * A call for each row costs less than to copy a few together and back, of any width (measured).
 */
static void aps_step_rows(aps_update kernel, const aps_optim_args *given, const aps_i64 *slots,
                          ptrdiff_t n, ptrdiff_t width)
{
    const aps_rows *w = (const aps_rows *)given->w, *m = (const aps_rows *)given->m;
    const aps_rows *v = (const aps_rows *)given->v, *d = (const aps_rows *)given->d;
    const aps_rows *const tables[] = { w, m, v, d };
    aps_optim_args row = *given;
    row.n = width;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (i + APS_AHEAD < n)
            for (int t = 0; t < 4; t++)
                if (tables[t] != NULL)
                    aps_ask_for(aps_row_at(tables[t], slots[i + APS_AHEAD]), w->row);
        row.out = aps_row_at(w, slots[i]);
        row.w = row.out;
        row.m = m == NULL ? NULL : aps_row_at(m, slots[i]);
        row.v = v == NULL ? NULL : aps_row_at(v, slots[i]);
        row.d = d == NULL ? NULL : aps_row_at(d, slots[i]);
        row.g = (const char *)given->g + i * w->row;
        kernel(&row);
    }
}

#endif
