/* A CUDA runtime without a GPU: it hands out addresses and keeps no memory.
 *
 * With it the allocator inside torch's libc10_cuda.so runs on any machine, so that
 * Ebbtide's model can be compared with the real one. FAKE_CAPACITY is the device's
 * memory in bytes (default 8 GiB). Freed addresses are given out again, lowest first.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BASE 0x7f0000000000ull
#define UNIT (2ull << 20)
#define MAX_SEGMENTS 65536

static struct { uint64_t begin, end; } segments[MAX_SEGMENTS]; /* ordered by address */
static int count = 0;
static uint64_t used = 0, reserved_next = 0x600000000000ull;
static int64_t recorded = 0, done = 0;

static uint64_t capacity(void) {
  const char *text = getenv("FAKE_CAPACITY");
  return text ? strtoull(text, NULL, 10) : 8ull << 30;
}

/* For the driver program: every event recorded so far has completed. */
void fake_complete_events(void) { done = recorded; }

cudaError_t cudaMalloc(void **out, size_t size) {
  uint64_t rounded = (size + UNIT - 1) / UNIT * UNIT, at = BASE;
  int place = 0;
  if (used + rounded > capacity() || count == MAX_SEGMENTS) return cudaErrorMemoryAllocation;
  while (place < count && segments[place].begin < at + rounded) at = segments[place++].end;
  memmove(&segments[place + 1], &segments[place], (count - place) * sizeof(segments[0]));
  segments[place].begin = at;
  segments[place].end = at + rounded;
  count++;
  used += rounded;
  *out = (void *)at;
  return cudaSuccess;
}

cudaError_t cudaFree(void *ptr) {
  for (int i = 0; i < count; i++)
    if (segments[i].begin == (uint64_t)ptr) {
      used -= segments[i].end - segments[i].begin;
      memmove(&segments[i], &segments[i + 1], (count - i - 1) * sizeof(segments[0]));
      count--;
      return cudaSuccess;
    }
  return cudaErrorInvalidValue;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  *total = capacity();
  *available = capacity() - used;
  return cudaSuccess;
}

/* Events: a number each, complete once `done` has reached it. */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  *event = (cudaEvent_t)calloc(1, sizeof(int64_t));
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  *(int64_t *)event = ++recorded;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return *(int64_t *)event <= done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { *ms = 0; return cudaSuccess; }

/* Devices and streams. */
cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
  memset(prop, 0, sizeof *prop);
  strcpy(prop->name, "fake");
  prop->totalGlobalMem = capacity();
  prop->major = 8;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0; *greatest = -1;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  static uint64_t next = 0x1000;
  *stream = (cudaStream_t)(next += 0x100);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
    unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
    const cudaGraphEdgeData **edges, size_t *n) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t error) { return "fake"; }
const char *cudaGetErrorString(cudaError_t error) { return "fake"; }

/* Expandable segments, through the driver's entry points. */
static CUresult reserve(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr addr,
    unsigned long long flags) {
  *ptr = reserved_next;
  reserved_next += (size + (1ull << 30)) / (1ull << 30) * (1ull << 30);
  return CUDA_SUCCESS;
}
static CUresult create(CUmemGenericAllocationHandle *handle, size_t size,
    const CUmemAllocationProp *prop, unsigned long long flags) {
  if (used + size > capacity()) return CUDA_ERROR_OUT_OF_MEMORY;
  used += size;
  *handle = size;
  return CUDA_SUCCESS;
}
static CUresult release(CUmemGenericAllocationHandle handle) {
  used -= handle;
  return CUDA_SUCCESS;
}
static CUresult granularity(size_t *size, const CUmemAllocationProp *prop, int option) {
  *size = UNIT;
  return CUDA_SUCCESS;
}
static CUresult nothing(void) { return CUDA_SUCCESS; }
static CUresult error_text(CUresult result, const char **text) { *text = "fake"; return CUDA_SUCCESS; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
    unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
  void *found = (void *)nothing;
  if (!strcmp(symbol, "cuMemAddressReserve")) found = (void *)reserve;
  if (!strcmp(symbol, "cuMemCreate")) found = (void *)create;
  if (!strcmp(symbol, "cuMemRelease")) found = (void *)release;
  if (!strcmp(symbol, "cuMemGetAllocationGranularity")) found = (void *)granularity;
  if (!strcmp(symbol, "cuGetErrorString")) found = (void *)error_text;
  *function = found;
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

