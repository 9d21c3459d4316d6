/* device.h: QUIRE0, the device that llama.cpp sees. */
#ifndef QUIRE_PLUGIN_DEVICE_H
#define QUIRE_PLUGIN_DEVICE_H

#include "host_ggml.h"

#define DEVICE_NAME "QUIRE0"

extern struct ggml_backend_device quire_device;

#endif
