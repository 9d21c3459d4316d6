# Toolchain file: static programs for the other processor on a Linux machine; their tests run under qemu-user.
#   cmake -S . -B build/cross --toolchain cmake/linux-cross.cmake -DQUIRE_CLI=OFF -DQUIRE_ENGINE=OFF
# The other one is x86_64 on aarch64, and aarch64 elsewhere; -DQUIRE_CROSS=NAME chooses.
set(QUIRE_CROSS "" CACHE STRING "Processor to build for: aarch64 or x86_64; empty: the one that this machine is not")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES QUIRE_CROSS)
set(processor ${QUIRE_CROSS})
if(NOT processor)
    cmake_host_system_information(RESULT host QUERY OS_PLATFORM)
    if(host MATCHES "aarch64|arm64")
        set(processor x86_64)
    else()
        set(processor aarch64)
    endif()
endif()
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${processor})
set(CMAKE_C_COMPILER ${processor}-linux-gnu-gcc)
set(CMAKE_FIND_ROOT_PATH /usr/${processor}-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-${processor} -cpu max) # the default x86-64 CPU has no AVX

# Debian's static libm for cross builds may be a linker script with wrong paths: put the archives behind it in front.
file(GLOB libm /usr/${processor}-linux-gnu/lib/libm-*.a)
if(libm)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/libm)
    file(CREATE_LINK ${libm} ${CMAKE_BINARY_DIR}/libm/libm.a SYMBOLIC)
    set(CMAKE_EXE_LINKER_FLAGS_INIT "-static -L${CMAKE_BINARY_DIR}/libm")
else()
    set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
endif()
