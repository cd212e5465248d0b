/* libcuda.so.1 for machines without NVIDIA's driver: enough for cuDNN to build plans, and nothing more.

   Loading a kernel succeeds and gives a dummy handle; what needs a device returns CUDA_ERROR_NO_DEVICE. Arguments that a
   function does not use are left out of its declaration. */

#include <stddef.h>

typedef int Result;
enum { SUCCESS = 0, NO_DEVICE = 100, CUDA_13 = 13000 };
static char handle[64];

Result cuDriverGetVersion(int* version) { *version = CUDA_13; return SUCCESS; }
Result cuGetErrorName(Result error, const char** text) { (void)error; *text = "CUDA_ERROR_STUB"; return SUCCESS; }
Result cuGetErrorString(Result error, const char** text) { (void)error; *text = "no driver, only a stub"; return SUCCESS; }

Result cuLibraryLoadData(void** library) { *library = handle; return SUCCESS; }
Result cuLibraryGetKernel(void** kernel) { *kernel = handle; return SUCCESS; }
Result cuLibraryGetModule(void** module) { *module = handle; return SUCCESS; }
Result cuLibraryUnload(void) { return SUCCESS; }
Result cuKernelGetFunction(void** function) { *function = handle; return SUCCESS; }
Result cuKernelSetAttribute(void) { return SUCCESS; }
Result cuKernelGetAttribute(int* value) { *value = 0; return SUCCESS; }
Result cuModuleLoadData(void** module) { *module = handle; return SUCCESS; }
Result cuModuleLoadDataEx(void** module) { *module = handle; return SUCCESS; }
Result cuModuleGetFunction(void** function) { *function = handle; return SUCCESS; }
Result cuModuleUnload(void) { return SUCCESS; }
Result cuFuncSetAttribute(void) { return SUCCESS; }
Result cuFuncGetAttribute(int* value) { *value = 0; return SUCCESS; }
Result cuOccupancyMaxPotentialClusterSize(int* size) { *size = 8; return SUCCESS; }
Result cuTensorMapEncodeIm2col(void) { return SUCCESS; }
Result cuTensorMapEncodeTiled(void) { return SUCCESS; }

#define NO_DEVICE_FOR(name) Result name(void) { return NO_DEVICE; }
NO_DEVICE_FOR(cuInit)
NO_DEVICE_FOR(cuDeviceGet)
NO_DEVICE_FOR(cuDeviceGetCount)
NO_DEVICE_FOR(cuCtxGetCurrent)
NO_DEVICE_FOR(cuCtxGetLimit)
NO_DEVICE_FOR(cuCtxPopCurrent)
NO_DEVICE_FOR(cuCtxPopCurrent_v2)
NO_DEVICE_FOR(cuCtxPushCurrent)
NO_DEVICE_FOR(cuCtxPushCurrent_v2)
NO_DEVICE_FOR(cuStreamGetCtx)
NO_DEVICE_FOR(cuLaunchKernel)
NO_DEVICE_FOR(cuLaunchKernelEx)
NO_DEVICE_FOR(cuLaunchCooperativeKernel)
NO_DEVICE_FOR(cuLibraryLoadFromFile)
NO_DEVICE_FOR(cuLinkCreate)
NO_DEVICE_FOR(cuLinkCreate_v2)
NO_DEVICE_FOR(cuLinkAddData)
NO_DEVICE_FOR(cuLinkAddData_v2)
NO_DEVICE_FOR(cuLinkComplete)
NO_DEVICE_FOR(cuLinkDestroy)
