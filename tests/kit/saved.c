#include "saved.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"

static char directory[64];

const char *saved_path(const char *name) {
    static char path[4][512];
    static int next;
    if (!directory[0]) {
        strcpy(directory, "/tmp/quire-test-XXXXXX");
        assert_non_null(mkdtemp(directory));
    }
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", directory, name);
    return path[next];
}

void saved_remove_all(void) {
    DIR *dir = directory[0] ? opendir(directory) : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        unlink(saved_path(entry->d_name));
    if (dir)
        closedir(dir);
    if (directory[0])
        rmdir(directory);
    directory[0] = 0;
}

int saved_teardown(void **state) {
    (void)state;
    saved_remove_all();
    return 0;
}

bytes file_read(const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    bytes all = {.n = (size_t)ftell(file)};
    rewind(file);
    all.data = malloc(all.n + 1);
    assert_int_equal(fread(all.data, 1, all.n, file), all.n);
    fclose(file);
    return all;
}

/* In place: a file system may take a file that is emptied and written again for one that must
 * reach the disk. */
void file_write(const char *path, const void *data, size_t n) {
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, n, 0), n);
    assert_int_equal(ftruncate(fd, (off_t)n), 0);
    close(fd);
}

static uint64_t little(const uint8_t *at, int n) {
    uint64_t x = 0;
    for (int i = n - 1; i >= 0; i--)
        x = x << 8 | at[i];
    return x;
}

/* Both by docs/FORMAT.md, section 10. */
void file_sign_header(bytes file) {
    const size_t n_sections = (size_t)little(file.data + 12, 4),
                 head = (64 + 48 * n_sections + 63) / 64 * 64;
    memset(file.data + 48, 0, 16);
    const quire_digest digest = quire__hash_of(file.data, head);
    memcpy(file.data + 48, digest.byte, 16);
}

void file_sign(bytes file) {
    const size_t n_sections = (size_t)little(file.data + 12, 4);
    for (size_t i = 0; i < n_sections; i++) {
        uint8_t *entry = file.data + 64 + 48 * i;
        const size_t offset = (size_t)little(entry + 8, 8),
                     n = ((size_t)little(entry + 16, 8) + 63) / 64 * 64;
        const quire_digest digest = quire__hash_of(file.data + offset, n);
        memcpy(entry + 24, digest.byte, 16);
    }
    file_sign_header(file);
}

quire_status saved_load(quire_pool *pool, const char *path, const quire_load_options *options,
                        quire_seq **seq) {
    quire_file *file;
    *seq = NULL;
    quire_status status = quire_file_open(&file, path);
    if (status == QUIRE_OK)
        status = quire_seq_load(pool, file, options, seq);
    quire_file_close(file);
    return status;
}
