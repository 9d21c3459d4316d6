#include "codec/rotate.h"
#include "kern/ref/ref.h"

static const char *attend_name(const quire_format *format) {
    (void)format;
    return "attend_packed_ref"; /* one loop serves every pair, in integers, on the packed bytes */
}

const quire_kernels quire__kernels_ref = {
    .isa = "ref",
    .workspace_bytes = sizeof(quire_ref_workspace),
    .rotate = quire__rotate,
    .unrotate = quire__unrotate,
    .project = quire__project,
    .seal = quire__page_encode,
    .quantize_query = quire__ref_quantize_query,
    .dot_page = quire__ref_dot_page,
    .attend_packed = quire__ref_attend_packed,
    .attend_raw = quire__ref_attend_raw,
    .attend_name = attend_name,
};
