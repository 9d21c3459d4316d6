/* model_cache_file.h: on-disk cache of per-model measurements, in the model's cache_dir.
 *
 *   DIRECTORY/DIGEST-NAME   the digest is that of the model's identity; the name says what it
 *                           is, and of which version
 *   kind (16 bytes), parts one after the other, XXH3-128 of all before
 *
 * The name identifies the model; the file itself does not. */
#ifndef ENGINE_MODEL_MODEL_CACHE_FILE_H
#define ENGINE_MODEL_MODEL_CACHE_FILE_H

#include "model/model.h"

enum { QUIRE__KIND_BYTES = 16 };

typedef struct quire__cache_part {
    void *data;
    size_t bytes;
} quire__cache_part;

/* False: the file is missing, has another length or is damaged; the parts are then undefined. */
bool quire__model_cache_read(const quire_model *model, const char *name,
                             const char kind[QUIRE__KIND_BYTES], const quire__cache_part *parts,
                             size_t n_parts);
/* Failures are ignored: the next process measures again. */
void quire__model_cache_write(const quire_model *model, const char *name,
                              const char kind[QUIRE__KIND_BYTES], const quire__cache_part *parts,
                              size_t n_parts);

/* The same for any path; its directory is created if needed. */
bool quire__model_cache_read_file(const char *path, const char kind[QUIRE__KIND_BYTES],
                                  const quire__cache_part *parts, size_t n_parts);
void quire__model_cache_write_file(const char *path, const char kind[QUIRE__KIND_BYTES],
                                   const quire__cache_part *parts, size_t n_parts);

#endif
