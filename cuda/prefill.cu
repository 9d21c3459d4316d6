/* Plans and launches of prefill attention; prefill.cuh has the kernels. */
#include "prefill.h"

#include <cmath>
#include <cstdio>
#include <new>

#include "fail.h"
#include "record.h"

using namespace quire_cuda;

struct quire_cuda_prefill_plan {
    quire_cuda_prefill_options options;
    const PrefillKernel *kernel;
    char name[64];
    int sms;
    size_t record_bytes;
    size_t ml_at, workspace_bytes;
};

namespace quire_cuda {

/* The narrowest tile that has room for all queries of a sequence's rows; the widest where none has.
 */
static const PrefillKernel *find_kernel(const quire_cuda_prefill_options &o) {
    const PrefillKernel *best = nullptr;
    const int64_t queries =
        o.rows_hint > 0 ? (int64_t)o.rows_hint * (o.n_heads / o.n_kv_heads) : INT32_MAX;
    for (const PrefillKernels &table :
         {prefill_kernels_64, prefill_kernels_80, prefill_kernels_96, prefill_kernels_128,
          prefill_kernels_256, prefill_kernels_narrow})
        for (int i = 0; i < table.n; i++) {
            const PrefillKernel &kernel = table.first[i];
            if (kernel.pair.k != o.pair.k || kernel.pair.v != o.pair.v || kernel.dim != o.k_dim)
                continue;
            if (!best ||
                (kernel.tile_queries >= queries && kernel.tile_queries < best->tile_queries))
                best = &kernel;
        }
    return best;
}

static quire_status check_options(const quire_cuda_prefill_options &o) {
    if (o.struct_size != sizeof o)
        return fail(QUIRE_E_INVALID, "options were not set by quire_cuda_prefill_options_default");
    QUIRE_CUDA_TRY(check_heads(o.n_heads, o.n_kv_heads));
    QUIRE_CUDA_TRY(check_types(o.raw, o.out));
    QUIRE_CUDA_TRY(check_logits(o.scale, o.softcap));
    QUIRE_CUDA_TRY(check_sight(o.sinks, o.window, o.keep));
    if (o.rows_hint < 0)
        return fail(QUIRE_E_INVALID, "rows_hint %d: must not be negative", (int)o.rows_hint);
    return QUIRE_OK;
}

static quire_status make_plan(quire_cuda_prefill_plan &plan, const quire_cuda_prefill_options &o) {
    QUIRE_CUDA_TRY(check_options(o));
    plan.options = o;
    plan.kernel = o.k_dim == o.v_dim ? find_kernel(o) : nullptr;
    if (!plan.kernel)
        return fail(
            QUIRE_E_UNSUPPORTED,
            "no prefill kernel for %s:%s with head sizes %d and %d (docs/CUDA.md lists them)",
            codec_name(o.pair.k), codec_name(o.pair.v), (int)o.k_dim, (int)o.v_dim);
    QUIRE_CUDA_TRY(quire_cuda_available());
    int device, major, minor;
    QUIRE_CUDA_TRY(check(cudaGetDevice(&device), "asking for the current device"));
    QUIRE_CUDA_TRY(check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                         "asking for the compute capability"));
    QUIRE_CUDA_TRY(check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                         "asking for the compute capability"));
    if (major != 9 || minor != 0)
        return fail(QUIRE_E_UNSUPPORTED,
                    "device %d has compute capability %d.%d: prefill runs on 9.0 alone", device,
                    major, minor);
    QUIRE_CUDA_TRY(check(cudaDeviceGetAttribute(&plan.sms, cudaDevAttrMultiProcessorCount, device),
                         "asking for the number of multiprocessors"));
    QUIRE_CUDA_TRY(check(cudaFuncSetAttribute((const void *)plan.kernel->run,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              plan.kernel->shared_bytes),
                         "reserving shared memory"));
    plan.record_bytes =
        (size_t)record_of(k_bits_of(o.pair.k), o.k_dim, v_bits_of(o.pair.v), o.v_dim).bytes;
    const size_t rows = 2 * (size_t)plan.sms * plan.kernel->workers * plan.kernel->tile_queries;
    plan.ml_at = rows * o.v_dim * sizeof(float);
    plan.workspace_bytes = plan.ml_at + rows * sizeof(float2);
    snprintf(plan.name, sizeof plan.name, "%s:%s d%d, tiles of %d queries", codec_name(o.pair.k),
             codec_name(o.pair.v), (int)o.k_dim, plan.kernel->tile_queries);
    return QUIRE_OK;
}

static quire_status check_args(const quire_cuda_prefill_plan &plan,
                               const quire_cuda_prefill_args &a) {
    const quire_cuda_prefill_options &o = plan.options;
    if (a.n_seqs < 0)
        return fail(QUIRE_E_INVALID, "%d sequences", (int)a.n_seqs);
    if (!a.q || !a.out || !a.starts || !a.lengths || !a.pages || !a.records.base || !a.workspace)
        return fail(QUIRE_E_INVALID,
                    "q, out, starts, lengths, pages, records or workspace is NULL");
    if (((uintptr_t)a.q | (uintptr_t)a.out | (uintptr_t)a.k_order) % 16)
        return fail(QUIRE_E_INVALID, "q, out and k_order must be aligned to 16 bytes");
    if ((uintptr_t)a.workspace % 256)
        return fail(QUIRE_E_INVALID, "workspace must be aligned to 256 bytes");
    QUIRE_CUDA_TRY(check_records(a.records, o.n_kv_heads, plan.record_bytes));
    if (is_mixed(o.pair.k) && !a.k_order)
        return fail(QUIRE_E_INVALID, "%s needs k_order", codec_name(o.pair.k));
    QUIRE_CUDA_TRY(check_rows(a.own, "the queries' own pages"));
    return o.sinks > 0 ? check_rows(a.sink, "sinks") : QUIRE_OK;
}

static PrefillParams make_params(const quire_cuda_prefill_plan &plan,
                                 const quire_cuda_prefill_args &a) {
    const quire_cuda_prefill_options &o = plan.options;
    PrefillParams p = {};
    p.n_seqs = a.n_seqs;
    p.n_heads = o.n_heads;
    p.n_kv = o.n_kv_heads;
    p.group = o.n_heads / o.n_kv_heads;
    p.group_inverse = inverse_of(p.group);
    p.tile_queries = plan.kernel->tile_queries;
    p.sinks = o.sinks;
    p.window = o.window;
    p.keep = o.keep;
    p.max_workers = plan.sms * plan.kernel->workers;
    p.bf16 = o.raw == QUIRE_BF16;
    p.out_type = o.out;
    p.scale_log2 = (o.scale > 0 ? o.scale : 1.0f / sqrtf((float)o.k_dim)) * LOG2_E;
    p.softcap_log2 = o.softcap * LOG2_E;
    p.q = (const uint16_t *)a.q;
    p.out = a.out;
    p.lse = a.lse;
    p.starts = a.starts;
    p.lengths = a.lengths;
    p.pages = a.pages;
    p.slots = a.slots;
    p.pages_stride = a.pages_stride;
    p.records = (const uint8_t *)a.records.base;
    p.page_stride = a.records.page_stride;
    p.head_stride = a.records.head_stride;
    p.own = raw_rows(a.own);
    p.sink = raw_rows(a.sink);
    p.order = is_mixed(o.pair.k) ? a.k_order : nullptr;
    p.alibi = a.alibi;
    p.sink_logits = a.sink_logits;
    p.part_o = (float *)a.workspace;
    p.part_ml = (float2 *)((uint8_t *)a.workspace + plan.ml_at);
    return p;
}

} // namespace quire_cuda

extern "C" {

void quire_cuda_prefill_options_default(quire_cuda_prefill_options *options) {
    if (!options)
        return;
    *options = {};
    options->struct_size = sizeof *options;
    options->pair = {QUIRE_CODEC_KM4, QUIRE_CODEC_VT4};
    options->raw = QUIRE_F16;
    options->out = QUIRE_F32;
    options->sinks = 4;
}

quire_status quire_cuda_prefill_create(quire_cuda_prefill_plan **plan,
                                       const quire_cuda_prefill_options *options) {
    if (!plan || !options)
        return fail(QUIRE_E_INVALID, "plan or options is NULL");
    *plan = nullptr;
    quire_cuda_prefill_plan *made = new (std::nothrow) quire_cuda_prefill_plan();
    if (!made)
        return fail(QUIRE_E_NOMEM, "out of memory");
    const quire_status status = make_plan(*made, *options);
    if (status == QUIRE_OK)
        *plan = made;
    else
        delete made;
    return status;
}

void quire_cuda_prefill_free(quire_cuda_prefill_plan *plan) { delete plan; }
size_t quire_cuda_prefill_workspace(const quire_cuda_prefill_plan *plan) {
    return plan ? plan->workspace_bytes : 0;
}
const char *quire_cuda_prefill_kernel(const quire_cuda_prefill_plan *plan) {
    return plan ? plan->name : "";
}

quire_status quire_cuda_prefill(const quire_cuda_prefill_plan *plan,
                                const quire_cuda_prefill_args *args, struct CUstream_st *stream) {
    if (!plan || !args)
        return fail(QUIRE_E_INVALID, "plan or args is NULL");
    QUIRE_CUDA_TRY(check_args(*plan, *args));
    if (args->n_seqs == 0)
        return QUIRE_OK;
    const PrefillParams params = make_params(*plan, *args);
    void *arguments[] = {(void *)&params};
    QUIRE_CUDA_TRY(
        check(cudaLaunchKernel((const void *)plan->kernel->run, dim3((unsigned)plan->sms),
                               dim3((unsigned)plan->kernel->threads), arguments,
                               (size_t)plan->kernel->shared_bytes, stream),
              "launching the prefill kernel"));
    const int warps = 8, queries = 4 * warps;
    return check(cudaLaunchKernel((const void *)plan->kernel->merge,
                                  dim3((unsigned)params.max_workers - 1,
                                       (unsigned)((params.tile_queries + queries - 1) / queries)),
                                  dim3(32 * warps), arguments, 0, stream),
                 "launching the merge of partial results");
}
}
