/* The table entries of the reference kernels. */
#include "base/element.h"
#include "base/real.h"
#include "codec/hadamard.h"
#include "kern/ref/ref.h"

static size_t workspace_bytes(int n_rows, int k_dim, int v_dim) {
    (void)n_rows, (void)k_dim, (void)v_dim;
    return sizeof(quire_ref_workspace);
}

static bool serves(const quire_format *format) {
    (void)format;
    return true;
}

const quire_attend_kernel quire__attend_ref = {quire__ref_attend_packed, workspace_bytes, serves,
                                               "ref", NULL};
const quire_raw_kernel quire__attend_ref_raw = {quire__ref_attend_raw, workspace_bytes};

static void row_from_raw(quire_type type, const void *at, size_t n, float *row) {
    quire__row_from_raw(type, at, n, row);
}
static void row_to_raw(quire_type type, void *at, size_t n, const float *row) {
    quire__row_to_raw(type, at, n, row);
}

const quire_row_kernels quire__rows_ref = {
    quire__rotate, quire__unrotate, quire__project,     quire__blend,
    row_from_raw,  row_to_raw,      quire__side_encode, quire__side_round_with_feedback};
