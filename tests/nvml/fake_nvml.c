/* A stand-in for libnvidia-ml.so.1, the library of NVIDIA's driver that tells which GPUs there are.
 *
 * It has the calls of nvidia-ml-py that we and dask-cuda make, and FAKE_NVML_DEVICES (default 4)
 * GPUs of 16 GB. FAKE_NVML_LOST=<index> is one that fell off the bus. Nothing can be computed on
 * them: it is for the question who gets which GPU, not for what happens on it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_DEVICES 16
#define MEMORY (16ULL << 30)
#define BITS (8 * sizeof(unsigned long))

typedef enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, GPU_IS_LOST = 15 } Result;
typedef struct { int index; } *Device;

static struct { int index; } devices[MAX_DEVICES];

static int number_of(const char *variable, int otherwise) {
  const char *value = getenv(variable);
  return value && *value ? atoi(value) : otherwise;
}

static int n_devices(void) {
  int n = number_of("FAKE_NVML_DEVICES", 4);
  return n < MAX_DEVICES ? n : MAX_DEVICES;
}

static Result state(Device device) {
  return device->index == number_of("FAKE_NVML_LOST", -1) ? GPU_IS_LOST : SUCCESS;
}

static void write_uuid(int index, char *text, unsigned size) {
  snprintf(text, size, "GPU-%08x-feed-4bad-8bed-000000000000", 0x5eed0000 + index);
}

Result nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  for (int i = 0; i < MAX_DEVICES; i++) devices[i].index = i;
  return SUCCESS;
}

Result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

Result nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(Result result) {
  return result == GPU_IS_LOST ? "GPU is lost" : result == SUCCESS ? "Success" : "Failure";
}

Result nvmlSystemGetDriverVersion(char *text, unsigned size) {
  snprintf(text, size, "580.0");
  return SUCCESS;
}

Result nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = 13000;
  return SUCCESS;
}

Result nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

Result nvmlDeviceGetCount_v2(unsigned *n) {
  *n = n_devices();
  return SUCCESS;
}

Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
  if (index >= (unsigned)n_devices()) return INVALID_ARGUMENT;
  *device = (Device)&devices[index];
  return state(*device);
}

Result nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
  char text[80];
  for (int i = 0; i < n_devices(); i++) {
    write_uuid(i, text, sizeof text);
    if (strcmp(uuid, text) == 0) return nvmlDeviceGetHandleByIndex_v2(i, device);
  }
  return NOT_FOUND;
}

Result nvmlDeviceGetUUID(Device device, char *text, unsigned size) {
  write_uuid(device->index, text, size);
  return state(device);
}

Result nvmlDeviceGetIndex(Device device, unsigned *index) {
  *index = device->index;
  return state(device);
}

Result nvmlDeviceGetName(Device device, char *text, unsigned size) {
  snprintf(text, size, "Stand-in GPU");
  return state(device);
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

Result nvmlDeviceGetMemoryInfo(Device device, struct memory *memory) {
  memory->total = memory->free = MEMORY;
  memory->used = 0;
  return state(device);
}

Result nvmlDeviceGetMemoryInfo_v2(Device device, struct memory_v2 *memory) {
  memory->total = memory->free = MEMORY;
  memory->reserved = memory->used = 0;
  return state(device);
}

Result nvmlDeviceGetCpuAffinity(Device device, unsigned n_words, unsigned long *words) {
  long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
  memset(words, 0, n_words * sizeof *words);
  for (long i = 0; i < n_cpus && i < (long)(n_words * BITS); i++) words[i / BITS] |= 1UL << (i % BITS);
  return state(device);
}

Result nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
  *major = 9;
  *minor = 0;
  return state(device);
}

Result nvmlDeviceGetUtilizationRates(Device device, unsigned *rates) {
  rates[0] = rates[1] = 0;
  return state(device);
}

Result nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *n, void *processes) {
  (void)processes;
  *n = 0;
  return state(device);
}

/* No GPU of ours is cut into slices. */
Result nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *pending) {
  (void)device; (void)now; (void)pending;
  return NOT_SUPPORTED;
}

Result nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *n) {
  *n = 0;
  return state(device);
}

Result nvmlDeviceIsMigDeviceHandle(Device device, unsigned *answer) {
  *answer = 0;
  return state(device);
}
