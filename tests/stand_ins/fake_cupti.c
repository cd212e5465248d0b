// In place of libcupti: calls back for functions of the driver that a test names, and looks after its caller.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    int site;
    const char *name;
} Data;

typedef void (*Callback)(void *, int, uint32_t, const void *);

// Numbers are not those of any CUPTI.
static const char *const names[] = {
    "INVALID", "cuInit", "cuLaunchKernel", "cuMemAlloc_v2", "cuLaunchKernelEx_ptsz", "cuLaunchHostFunc",
    "cuLaunchCooperativeKernel", "cuGraphLaunch", "cuGraphLaunch_ptsz", "cuStreamSynchronize", "cuEventSynchronize",
    "cuCtxSynchronize_v2", "cuStreamQuery", "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoD_v2_ptds", "cuMemcpyDtoH_v2",
    "cuMemcpyDtoHAsync_v2_ptsz", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoD_v2", "cuMemcpy_ptds", "cuMemsetD8Async",
    "cuMemFree_v2", "cuGraphAddMemcpyNode",
};
enum { NAMES = sizeof names / sizeof *names, DRIVER_API = 1, INVALID = 1, MULTIPLE = 39, BAD = 999 };

static Callback callback;
static void *user;
static int enabled[NAMES];
int fake_failing;  // whether cuptiEnableCallback fails

int cuptiGetResultString(int status, const char **text) {
    *text = status == MULTIPLE ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR_UNKNOWN";
    return status == BAD ? BAD : 0;
}

int cuptiGetCallbackName(int domain, uint32_t number, const char **name) {
    if (domain != DRIVER_API || number >= NAMES) return INVALID;
    *name = names[number];
    return 0;
}

int cuptiSubscribe(void **subscriber, Callback given, void *data) {
    if (callback) return MULTIPLE;
    callback = given;
    user = data;
    *subscriber = &callback;
    return 0;
}

int cuptiEnableCallback(uint32_t on, void *subscriber, int domain, uint32_t number) {
    if (fake_failing) return BAD;
    if (subscriber != &callback || !callback || domain != DRIVER_API || number >= NAMES) return INVALID;
    enabled[number] = on;
    return 0;
}

int cuptiUnsubscribe(void *subscriber) {
    if (subscriber != &callback || !callback) return INVALID;
    callback = NULL;
    memset(enabled, 0, sizeof enabled);
    return 0;
}

// As if the driver were called; returns the number of callbacks, or -1 for a function that there is not.
int fake_call(const char *name) {
    for (uint32_t number = 0; number < NAMES; number++) {
        if (strcmp(names[number], name)) continue;
        if (!callback || !enabled[number]) return 0;
        for (int site = 0; site < 2; site++) {
            Data data = {site, name};
            callback(user, DRIVER_API, number, &data);
        }
        return 2;
    }
    return -1;
}
