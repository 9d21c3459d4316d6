#include "fail.h"

#include <cstdarg>
#include <cstdio>

#include "rope.h"

namespace quire_cuda {

static thread_local char last_error[320];

quire_status fail(quire_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return status;
}

quire_status check(cudaError_t error, const char *what) {
    if (error == cudaSuccess)
        return QUIRE_OK;
    cudaGetLastError(); /* a launch that was refused would be reported again by the next call */
    return fail(QUIRE_E_DEVICE, "%s: %s", what, cudaGetErrorString(error));
}

} // namespace quire_cuda

extern "C" {

quire_status quire_cuda__fail_text(quire_status status, const char *text) {
    return quire_cuda::fail(status, "%s", text);
}

const char *quire_cuda_last_error(void) { return quire_cuda::last_error; }

quire_status quire_cuda_available(void) {
    using namespace quire_cuda;
    int n = 0, device = 0, major = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || n == 0) {
        cudaGetLastError();
        return fail(QUIRE_E_DEVICE, "no CUDA device: %s",
                    error == cudaSuccess ? "none found" : cudaGetErrorString(error));
    }
    QUIRE_CUDA_TRY(check(cudaGetDevice(&device), "asking for the current device"));
    QUIRE_CUDA_TRY(check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                         "asking for the compute capability"));
    if (major < 9)
        return fail(QUIRE_E_DEVICE,
                    "device %d has compute capability %d.x: the kernels need 9.0 or later", device,
                    major);
    return QUIRE_OK;
}
}
