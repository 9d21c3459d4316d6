/* device.h: QUIRE0, the device that llama.cpp sees. */
#ifndef QUIRE_PLUGIN_DEVICE_H
#define QUIRE_PLUGIN_DEVICE_H

#include "host_ggml.h"

#define DEVICE_NAME "QUIRE0"

extern struct ggml_backend_device quire_device;

/* The last buffer was freed: a model that is loaded next may keep all its layers on the CPU. */
void device_is_unused(void);

#endif
