# Toolchain file: static x86-64 programs on another Linux machine, whose tests run under qemu-user.
#   cmake -S . -B build/x86 -DCMAKE_TOOLCHAIN_FILE=cmake/x86_64-linux-gnu.cmake -DQUIRE_CLI=OFF -DQUIRE_ENGINE=OFF
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER x86_64-linux-gnu-gcc)
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-x86_64 -cpu max) # the default CPU has no AVX

# Debian's static libm for cross builds is a linker script with wrong paths: put the archives behind it in front.
file(GLOB libm /usr/x86_64-linux-gnu/lib/libm-*.a)
if(libm)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/libm)
    file(CREATE_LINK ${libm} ${CMAKE_BINARY_DIR}/libm/libm.a SYMBOLIC)
    set(CMAKE_EXE_LINKER_FLAGS_INIT "-static -L${CMAKE_BINARY_DIR}/libm")
else()
    set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
endif()
