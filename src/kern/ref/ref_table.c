#include "base/element.h"
#include "codec/hadamard.h"
#include "kern/ref/ref.h"

static size_t workspace_bytes(int n_rows) {
    (void)n_rows;
    return sizeof(quire_ref_workspace);
}

static bool serves(const quire_format *format) {
    (void)format;
    return true;
}

const quire_attend_kernel quire__attend_ref = {quire__ref_attend_packed, workspace_bytes, serves,
                                               "ref"};
const quire_raw_kernel quire__attend_ref_raw = {quire__ref_attend_raw, workspace_bytes};

static void load_row(quire_type type, const void *at, size_t n, float *row) {
    quire__load_row(type, at, n, row);
}
static void store_row(quire_type type, void *at, size_t n, const float *row) {
    quire__store_row(type, at, n, row);
}

const quire_row_kernels quire__rows_ref = {quire__rotate,    quire__unrotate, quire__project,
                                           load_row,         store_row,       quire__page_encode,
                                           quire__side_shape};
