/* llama_smoke.c: does the ggml that was just built run on this machine? Multiplies by a weight
 * matrix of every type, as the file has it and rearranged for the processor (repacked, AMX),
 * with 1, 2, 5 and 64 rows, and compares with the product in double. Each type runs in a process
 * of its own: a compiler or a processor that disagrees with ggml ends that process, not this
 * one. usage: llama_smoke [-v | --rows]
 *   -v       also names what works
 *   --rows   prints how many rows a product must have for a row's bits not to depend on how many
 *            others there are, and fails if 8, 16, 64 and 512 rows disagree: the engine's exact
 *            steps rely on that (engine/graph/row_padding.h)
 * Prints the name of every buffer type that failed, one a line, the first failure of each on
 * stderr, and exits with 1. */
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* K: two super-blocks. N: two pairs of AMX tiles; its columns repeat after DISTINCT, since some
 * types take long to pack, and that number shares no factor with the 4 to 32 columns that are
 * rearranged together. */
enum { K = 512, N = 64, DISTINCT = 5, MAX_ROWS = 512, N_THREADS = 2 };
enum { WORKS, WRONG, UNSERVED, NO_MEMORY };
enum mode { QUIET, VERBOSE, SHOW_ROWS };
static const int ROWS[] = {1, 2, 5, 64, 0}, MORE_ROWS[] = {MAX_ROWS, 64, 16, 8, 4, 2, 1, 0};
enum { ENOUGH_ROWS = 8 };
static const double BOUND =
    .02; /* relative L2: activations are rounded to 8 bits, which costs about .005 */

typedef ggml_backend_buffer_type_t *(*extra_types_fn)(ggml_backend_dev_t device);

static float sample(unsigned *state) { /* uniform in [-1, 1) */
    *state = *state * 1664525u + 1013904223u;
    return (float)(int)*state * 0x1p-31f;
}

/* Types of weights, less those whose tables take seconds to make: no buffer type rearranges
 * them. */
static bool is_weight_type(enum ggml_type type) {
    const char *name = ggml_type_name(type);
    if (!name || ggml_blck_size(type) == 0)
        return false;
    if (!ggml_is_quantized(type))
        return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
    return strncmp(name, "iq1", 3) != 0 && strncmp(name, "iq2", 3) != 0 &&
           strncmp(name, "iq3", 3) != 0;
}

/* The type's own idea of `weights`: packed into `packed`, and what that stands for in `decoded`. */
static bool pack(enum ggml_type type, const float *weights, char *packed, float *decoded) {
    const struct ggml_type_traits *traits = ggml_get_type_traits(type);
    if (ggml_quantize_requires_imatrix(type) || (type != GGML_TYPE_F32 && !traits->to_float))
        return false;
    const size_t column = ggml_row_size(type, K);
    if (ggml_quantize_chunk(type, weights, packed, 0, DISTINCT, K, NULL) == 0)
        return false;
    for (int n = DISTINCT; n < N; n++)
        memcpy(packed + column * (size_t)n, packed + column * (size_t)(n % DISTINCT), column);
    if (type == GGML_TYPE_F32)
        memcpy(decoded, packed, sizeof(float) * N * K);
    else
        traits->to_float(packed, decoded, (int64_t)N * K);
    return true;
}

static double distance(const float *got, const float *weights, const float *x, int n_rows) {
    double apart = 0, size = 0;
    for (int r = 0; r < n_rows; r++)
        for (int n = 0; n < N; n++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += (double)weights[n * K + k] * (double)x[r * K + k];
            const double d = (double)got[r * N + n] - sum;
            apart += d * d;
            size += sum * sum;
        }
    return sqrt(apart / size);
}

/* One product of n_rows rows, with the weight in a buffer of `buft`, into got (n_rows, N). */
static int multiply(ggml_backend_t cpu, ggml_backend_buffer_type_t buft, enum ggml_type type,
                    const void *packed, const float *decoded, const float *x, int n_rows,
                    float *got) {
    const struct ggml_init_params params = {
        .mem_size = 8 * ggml_tensor_overhead() + ggml_graph_overhead(), .no_alloc = true};
    struct ggml_context *fixed = ggml_init(params), *moving = ggml_init(params);
    struct ggml_tensor *weight = ggml_new_tensor_2d(fixed, type, K, N);
    struct ggml_tensor *rows = ggml_new_tensor_2d(moving, GGML_TYPE_F32, K, n_rows);
    struct ggml_tensor *product = ggml_mul_mat(moving, weight, rows);
    ggml_backend_buffer_t weights = ggml_backend_alloc_ctx_tensors_from_buft(fixed, buft);
    ggml_backend_buffer_t others = ggml_backend_alloc_ctx_tensors(moving, cpu);
    if (!weights || !others)
        return NO_MEMORY;
    if (!ggml_backend_dev_supports_op(ggml_backend_get_device(cpu), product))
        return UNSERVED;
    ggml_backend_tensor_set(weight, packed, 0, ggml_nbytes(weight));
    ggml_backend_tensor_set(rows, x, 0, ggml_nbytes(rows));
    struct ggml_cgraph *graph = ggml_new_graph(moving);
    ggml_build_forward_expand(graph, product);
    if (ggml_backend_graph_compute(cpu, graph) != GGML_STATUS_SUCCESS)
        return WRONG;
    ggml_backend_tensor_get(product, got, 0, ggml_nbytes(product));
    const int compared = n_rows < 64 ? n_rows : 64; /* enough, and the sums in double take time */
    return distance(got, decoded, x, compared) <= BOUND ? WORKS : WRONG; /* NaN is wrong, too */
}

static int previous(int n_rows) { /* in MORE_ROWS */
    int before = MAX_ROWS;
    for (const int *n = MORE_ROWS; *n && *n != n_rows; n++)
        before = *n;
    return before;
}

static int check(ggml_backend_buffer_type_t buft, enum ggml_type type, enum mode mode) {
    static float weights[DISTINCT * K], decoded[N * K], x[MAX_ROWS * K], got[MAX_ROWS * N],
        most[MAX_ROWS * N];
    static char packed[sizeof decoded];
    unsigned state = 1;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        weights[i] = sample(&state);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = sample(&state);
    if (!pack(type, weights, packed, decoded))
        return UNSERVED;
    ggml_backend_t cpu = ggml_backend_cpu_init();
    if (!cpu)
        return NO_MEMORY;
    ggml_backend_cpu_set_n_threads(cpu, N_THREADS);
    int least = MAX_ROWS; /* from which on the bits are those of the most rows */
    for (const int *n = mode == SHOW_ROWS ? MORE_ROWS : ROWS; *n; n++) {
        const int result = multiply(cpu, buft, type, packed, decoded, x, *n, got);
        if (result != WORKS)
            return result;
        if (*n == MAX_ROWS)
            memcpy(most, got, sizeof got);
        if (memcmp(most, got, sizeof(float) * N * (size_t)*n) == 0 &&
            (least == MAX_ROWS || least == previous(*n)))
            least = *n;
    }
    if (mode == SHOW_ROWS)
        fprintf(stderr, "  %-12s %-8s the same bits from %d rows on\n",
                ggml_backend_buft_name(buft), ggml_type_name(type), least);
    return mode == SHOW_ROWS && least > ENOUGH_ROWS ? WRONG : WORKS;
}

/* In a child: the result, or minus the signal that ended it. */
static int check_apart(ggml_backend_buffer_type_t buft, enum ggml_type type, enum mode mode) {
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0)
        return NO_MEMORY;
    if (child == 0) {
        alarm(120);
        _exit(check(buft, type, mode));
    }
    int status;
    if (waitpid(child, &status, 0) != child)
        return NO_MEMORY;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static bool check_buffer_type(ggml_backend_buffer_type_t buft, enum mode mode) {
    const char *name = ggml_backend_buft_name(buft);
    bool works = true;
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        const enum ggml_type type = (enum ggml_type)t;
        if (!is_weight_type(type))
            continue;
        const int result = check_apart(buft, type, mode);
        if (mode == VERBOSE && result == WORKS)
            fprintf(stderr, "llama_smoke: %s, %s weights: works\n", name, ggml_type_name(type));
        if (result == WORKS || result == UNSERVED)
            continue;
        if (result < 0)
            fprintf(stderr, "llama_smoke: %s, %s weights: %s\n", name, ggml_type_name(type),
                    strsignal(-result));
        else
            fprintf(stderr, "llama_smoke: %s, %s weights: %s\n", name, ggml_type_name(type),
                    result != WRONG     ? "out of memory"
                    : mode == SHOW_ROWS ? "rows disagree"
                                        : "wrong product");
        works = false;
        break;
    }
    if (!works)
        puts(name);
    return works;
}

static void say_nothing(enum ggml_log_level level, const char *text, void *unused) {
    (void)level, (void)text, (void)unused;
}

int main(int argc, char **argv) {
    ggml_log_set(say_nothing, NULL);
    const enum mode mode = argc < 2 ? QUIET : strcmp(argv[1], "--rows") == 0 ? SHOW_ROWS : VERBOSE;
    bool works = check_buffer_type(ggml_backend_cpu_buffer_type(), mode);
    ggml_backend_reg_t reg = ggml_backend_cpu_reg();
    extra_types_fn get = NULL;
    void *address = ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
    memcpy(&get, &address, sizeof get); /* C has no cast from an object pointer to a function's */
    for (ggml_backend_buffer_type_t *buft = get ? get(ggml_backend_reg_dev_get(reg, 0)) : NULL;
         buft && *buft; buft++)
        works &= check_buffer_type(*buft, mode);
    return works ? 0 : 1;
}
