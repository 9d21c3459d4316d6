#include "kern/ref/ref.h"

static size_t workspace_bytes(int n_rows) {
    (void)n_rows;
    return sizeof(quire_ref_workspace);
}

static bool serves(const quire_format *format) {
    (void)format;
    return true;
}

const quire_attend_kernel quire__attend_ref = {quire__ref_attend_packed, workspace_bytes, serves, "ref"};
const quire_raw_kernel quire__attend_ref_raw = {quire__ref_attend_raw, workspace_bytes};
