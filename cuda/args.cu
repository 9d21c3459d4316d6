#include "args.h"

#include <cmath>

#include "fail.h"
#include "record.h"

namespace quire_cuda {

const char *codec_name(quire_codec codec) {
    switch (codec) {
#define NAME(id, number, name, family, bits, group, sides)                                         \
    case QUIRE_CODEC_##id:                                                                         \
        return name;
        QUIRE_CODEC_MAP(NAME)
#undef NAME
    default:
        return "unknown";
    }
}

quire_status check_rows(const quire_cuda_rows &r, const char *what) {
    if (!r.k || !r.v)
        return fail(QUIRE_E_INVALID, "rows of %s are NULL", what);
    if (((uintptr_t)r.k | (uintptr_t)r.v) % 16 ||
        (r.k_slot | r.k_head | r.k_token | r.v_slot | r.v_head | r.v_token) % 8)
        return fail(QUIRE_E_INVALID,
                    "rows of %s: pointers must be aligned to 16 bytes, strides to 8 elements",
                    what);
    return QUIRE_OK;
}

quire_status check_records(const quire_cuda_records &records, int n_kv_heads, size_t record_bytes) {
    if (((uintptr_t)records.base | records.page_stride | records.head_stride) % 128 ||
        (n_kv_heads > 1 && records.head_stride < record_bytes))
        return fail(QUIRE_E_INVALID,
                    "records must lie at multiples of 128 bytes, heads %zu bytes apart or more",
                    record_bytes);
    return QUIRE_OK;
}

quire_status check_heads(int n_heads, int n_kv_heads) {
    if (n_kv_heads < 1 || n_heads < 1 || n_heads % n_kv_heads)
        return fail(QUIRE_E_INVALID, "%d query heads cannot share %d KV heads", n_heads,
                    n_kv_heads);
    if (n_heads / n_kv_heads > 2 * MAX_HEADS)
        return fail(QUIRE_E_UNSUPPORTED, "%d query heads per KV head: at most %d",
                    n_heads / n_kv_heads, 2 * MAX_HEADS);
    return QUIRE_OK;
}

quire_status check_types(quire_type raw, quire_type out) {
    if (raw != QUIRE_F16 && raw != QUIRE_BF16)
        return fail(QUIRE_E_UNSUPPORTED, "raw type %d: the GPU reads f16 and bf16", (int)raw);
    if (out != QUIRE_F32 && out != QUIRE_F16 && out != QUIRE_BF16)
        return fail(QUIRE_E_INVALID, "output type %d is not f32, f16 or bf16", (int)out);
    return QUIRE_OK;
}

quire_status check_logits(float scale, float softcap) {
    if (!std::isfinite(scale) || scale < 0)
        return fail(QUIRE_E_INVALID, "scale %g: must be positive, or 0 for 1/sqrt(k_dim)",
                    (double)scale);
    if (!std::isfinite(softcap) || softcap < 0)
        return fail(QUIRE_E_INVALID, "softcap %g: must be positive, or 0 for none",
                    (double)softcap);
    return QUIRE_OK;
}

quire_status check_sight(int sinks, int window, int keep) {
    if (sinks < 0 || sinks > T)
        return fail(QUIRE_E_INVALID, "%d sinks: must be 0 to 64", sinks);
    if (window < 0 || keep < 0)
        return fail(QUIRE_E_INVALID, "window %d, keep %d: must not be negative", window, keep);
    return QUIRE_OK;
}

RawRows raw_rows(const quire_cuda_rows &r) {
    return {(const uint16_t *)r.k,
            (const uint16_t *)r.v,
            r.k_slot,
            r.k_head,
            r.k_token,
            r.v_slot,
            r.v_head,
            r.v_token};
}

quire_status shared_limit(int *bytes) {
    int device;
    QUIRE_CUDA_TRY(check(cudaGetDevice(&device), "asking for the current device"));
    return check(cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                 "asking for the size of shared memory");
}

} // namespace quire_cuda
