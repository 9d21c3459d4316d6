/* ggml_fits.h: whether this processor has the instructions that ggml was compiled for. */
#ifndef ENGINE_MODEL_GGML_FITS_H
#define ENGINE_MODEL_GGML_FITS_H

#include "base/status.h"

/* E_UNSUPPORTED names what is missing. Without this check the process would end by an illegal
 * instruction. */
quire_status quire__ggml_fits(void);

#endif
