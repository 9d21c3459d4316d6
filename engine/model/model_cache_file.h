/* model_cache_file.h: what takes long to find out about a model, in files of its cache_dir for
 * the next process.
 *
 *   DIRECTORY/DIGEST-NAME   the digest is that of the model's identity; the name says what it
 *                           is, and of which version
 *   kind (16 bytes), parts one after the other, XXH3-128 of all before
 *
 * A file is of no use to any other model, so its name is all that it says of itself. */
#ifndef ENGINE_MODEL_MODEL_CACHE_FILE_H
#define ENGINE_MODEL_MODEL_CACHE_FILE_H

#include "model/model.h"

enum { QUIRE__KIND_BYTES = 16 };

typedef struct quire__cache_part {
    void *data;
    size_t bytes;
} quire__cache_part;

/* False: there is no such file, or one of other length, or damaged. The parts then hold
 * anything. */
bool quire__model_cache_read(const quire_model *model, const char *name,
                             const char kind[QUIRE__KIND_BYTES], const quire__cache_part *parts,
                             size_t n_parts);
/* A file that cannot be written costs the next process time, nothing else. */
void quire__model_cache_write(const quire_model *model, const char *name,
                              const char kind[QUIRE__KIND_BYTES], const quire__cache_part *parts,
                              size_t n_parts);

/* The same, of any file that is kept: DIRECTORY is made if it is not there. */
bool quire__model_cache_read_file(const char *path, const char kind[QUIRE__KIND_BYTES],
                                  const quire__cache_part *parts, size_t n_parts);
void quire__model_cache_write_file(const char *path, const char kind[QUIRE__KIND_BYTES],
                                   const quire__cache_part *parts, size_t n_parts);

#endif
