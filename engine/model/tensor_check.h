/* tensor_check.h: tensors of a file that no graph here would use. Left alone, they would make a
 * model that runs and talks nonsense. */
#ifndef ENGINE_MODEL_TENSOR_CHECK_H
#define ENGINE_MODEL_TENSOR_CHECK_H

#include "model/gguf_file.h"

/* Before an architecture looks for its tensors: kinds that are known and not supported, by what
 * they mean. */
quire_status quire__tensors_refuse(const quire__gguf *file);
/* After it: every tensor of the file was asked for. */
quire_status quire__tensors_all_used(const quire__gguf *file);

#endif
