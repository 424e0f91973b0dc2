/* What NCCL's host code asks of CUDA 11.3, declared by us: no header of CUDA is used, and nothing is complete. With it
 * from_source.py compiles NCCL's own sources without nvcc. The values are those of CUDA's documented interface; what is
 * done by these functions is in ../native. */
#pragma once
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <stddef.h>
#include <stdint.h>
#include <strings.h>
#define CUDART_VERSION 11030
#define CUDA_VERSION 11030
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __shared__
#define __constant__
#define __launch_bounds__(...)
#define __grid_constant__
#define CUDART_CB
typedef int cudaError_t;
typedef int cudaError;
typedef int CUresult;
enum { cudaSuccess=0, cudaErrorInvalidValue=1, cudaErrorMemoryAllocation=2, cudaErrorStubLibrary=34, cudaErrorNotReady=600, cudaErrorPeerAccessAlreadyEnabled=704, cudaErrorPeerAccessNotEnabled=705, cudaErrorLossyQuery=730 };
enum { CUDA_SUCCESS=0, CUDA_ERROR_INVALID_VALUE=1, CUDA_ERROR_NOT_PERMITTED=800, CUDA_ERROR_NOT_SUPPORTED=801 };
typedef struct CUstream_st* cudaStream_t; typedef cudaStream_t CUstream;
#define cudaStreamLegacy ((cudaStream_t)1)
#define cudaStreamPerThread ((cudaStream_t)2)
struct CUuuid { char bytes[16]; };
typedef CUuuid cudaUUID_t;
typedef struct CUevent_st* cudaEvent_t; typedef cudaEvent_t CUevent;
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphNode_st* cudaGraphNode_t;
typedef struct CUuserObject_st* cudaUserObject_t;
typedef struct CUctx_st* CUcontext;
typedef struct CUfunc_st* CUfunction;
typedef struct CUfunc_st* cudaFunction_t;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef int CUmemAllocationHandleType;
enum { CU_MEM_HANDLE_TYPE_NONE=0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR=1, CU_MEM_HANDLE_TYPE_FABRIC=8 };
typedef struct CUlib_st* cudaLibrary_t;
struct dim3 { unsigned x,y,z; dim3(unsigned a=1,unsigned b=1,unsigned c=1):x(a),y(b),z(c){} };
struct uint2 { unsigned x,y; }; struct uint4 { unsigned x,y,z,w; }; struct int4 { int x,y,z,w; }; struct ulong2 { unsigned long x,y; }; struct ulonglong2 { unsigned long long x,y; };
struct float2 { float x,y; }; struct float4 { float x,y,z,w; };
typedef struct { char reserved[64]; } cudaIpcMemHandle_t;
typedef enum { cudaMemcpyHostToHost=0, cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2, cudaMemcpyDeviceToDevice=3, cudaMemcpyDefault=4 } cudaMemcpyKind;
typedef enum { cudaStreamCaptureModeGlobal=0, cudaStreamCaptureModeThreadLocal=1, cudaStreamCaptureModeRelaxed=2 } cudaStreamCaptureMode;
typedef enum { cudaStreamCaptureStatusNone=0, cudaStreamCaptureStatusActive=1, cudaStreamCaptureStatusInvalidated=2 } cudaStreamCaptureStatus;
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor=75, cudaDevAttrComputeCapabilityMinor=76, cudaDevAttrMaxSharedMemoryPerBlockOptin=97, cudaDevAttrGPUDirectRDMASupported=116 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize=8, cudaFuncAttributePreferredSharedMemoryCarveout=9 };
enum { cudaStreamNonBlocking=1, cudaStreamDefault=0, cudaEventDisableTiming=2, cudaEventDefault=0, cudaHostAllocMapped=2, CU_MEMHOSTALLOC_WRITECOMBINED=4, cudaHostAllocWriteCombined=4, cudaHostRegisterPortable=1, cudaHostRegisterMapped=2, cudaIpcMemLazyEnablePeerAccess=1, cudaStreamSetCaptureDependencies=1, cudaEventWaitExternal=1 };
typedef enum { cudaLimitStackSize=0 } cudaLimit;
typedef enum { cudaMemoryTypeUnregistered=0, cudaMemoryTypeHost=1, cudaMemoryTypeDevice=2, cudaMemoryTypeManaged=3 } cudaMemoryType;
struct cudaPointerAttributes { cudaMemoryType type; int device; void* devicePointer; void* hostPointer; };
struct cudaFuncAttributes { size_t sharedSizeBytes, constSizeBytes, localSizeBytes; int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA, maxDynamicSharedSizeBytes, preferredShmemCarveout; int more[32]; };
typedef void (*cudaHostFn_t)(void*);
typedef struct CUmemPool_st* cudaMemPool_t;
typedef enum { cudaMemAllocationTypePinned=1 } cudaMemAllocationType; typedef enum { cudaMemHandleTypeNone=0 } cudaMemAllocationHandleType; typedef enum { cudaMemLocationTypeDevice=1 } cudaMemLocationType;
struct cudaMemLocation { cudaMemLocationType type; int id; };
struct cudaMemPoolProps { cudaMemAllocationType allocType; cudaMemAllocationHandleType handleTypes; cudaMemLocation location; void* win32SecurityAttributes; size_t maxSize; unsigned char reserved[56]; };
typedef enum { cudaMemPoolAttrReleaseThreshold=4 } cudaMemPoolAttr;
enum { cudaUserObjectNoDestructorSync=1, cudaGraphUserObjectMove=1, cudaEnableDefault=0 };
enum { CU_MEM_ALLOCATION_TYPE_PINNED=1, CU_MEM_LOCATION_TYPE_DEVICE=1, CU_MEM_LOCATION_TYPE_HOST_NUMA=3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3, CU_MEM_ALLOC_GRANULARITY_MINIMUM=0, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED=1, CU_CTX_SCHED_SPIN=1, CU_CTX_MAP_HOST=8, CU_STREAM_WAIT_VALUE_EQ=1, CU_STREAM_WRITE_VALUE_DEFAULT=0, CU_STREAM_MEM_OP_WAIT_VALUE_32=1, CU_STREAM_MEM_OP_WRITE_VALUE_32=2 };
typedef enum { CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED=102, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED=110, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED=124, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED=128, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID=134, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED=132 } CUdevice_attribute;
typedef enum { CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE=15, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES=17, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL=9 } CUpointer_attribute;
#define CU_LAUNCH_PARAM_END ((void*)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void*)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void*)2)
typedef int CUmemLocationType;
struct CUmemLocation { CUmemLocationType type; int id; };
struct CUmemAllocationProp { int type; int requestedHandleTypes; CUmemLocation location; void* win32HandleMetaData; struct { unsigned char compressionType, gpuDirectRDMACapable; unsigned short usage; unsigned char reserved[4]; } allocFlags; };
struct CUmemAccessDesc { CUmemLocation location; int flags; };
union CUstreamBatchMemOpParams { int operation; struct { int operation; CUdeviceptr address; union { unsigned value; uint64_t value64; }; unsigned flags; CUdeviceptr alias; } waitValue, writeValue; uint64_t pad[6]; };
#define PFN(name, version, ...) typedef CUresult (*PFN_##name##_v##version)(__VA_ARGS__);
PFN(cuDeviceGet,2000,CUdevice*,int)
PFN(cuDeviceGetUuid,9020,struct CUuuid*,CUdevice)
PFN(cuDeviceGetAttribute,2000,int*,CUdevice_attribute,CUdevice)
PFN(cuGetErrorString,6000,CUresult,const char**)
PFN(cuGetErrorName,6000,CUresult,const char**)
PFN(cuMemGetAddressRange,3020,CUdeviceptr*,size_t*,CUdeviceptr)
PFN(cuCtxCreate,11040,CUcontext*,void*,int,unsigned,CUdevice)
PFN(cuCtxCreate,3020,CUcontext*,unsigned,CUdevice)
PFN(cuCtxDestroy,4000,CUcontext)
PFN(cuCtxGetCurrent,4000,CUcontext*)
PFN(cuCtxSetCurrent,4000,CUcontext)
PFN(cuCtxGetDevice,2000,CUdevice*)
PFN(cuPointerGetAttribute,4000,void*,CUpointer_attribute,CUdeviceptr)
PFN(cuLaunchKernel,4000,CUfunction,unsigned,unsigned,unsigned,unsigned,unsigned,unsigned,unsigned,CUstream,void**,void**)
PFN(cuMemAddressReserve,10020,CUdeviceptr*,size_t,size_t,CUdeviceptr,unsigned long long)
PFN(cuMemAddressFree,10020,CUdeviceptr,size_t)
PFN(cuMemCreate,10020,CUmemGenericAllocationHandle*,size_t,const CUmemAllocationProp*,unsigned long long)
PFN(cuMemGetAllocationGranularity,10020,size_t*,const CUmemAllocationProp*,int)
PFN(cuMemExportToShareableHandle,10020,void*,CUmemGenericAllocationHandle,CUmemAllocationHandleType,unsigned long long)
PFN(cuMemImportFromShareableHandle,10020,CUmemGenericAllocationHandle*,void*,CUmemAllocationHandleType)
PFN(cuMemMap,10020,CUdeviceptr,size_t,size_t,CUmemGenericAllocationHandle,unsigned long long)
PFN(cuMemRelease,10020,CUmemGenericAllocationHandle)
PFN(cuMemRetainAllocationHandle,11000,CUmemGenericAllocationHandle*,void*)
PFN(cuMemSetAccess,10020,CUdeviceptr,size_t,const CUmemAccessDesc*,size_t)
PFN(cuMemUnmap,10020,CUdeviceptr,size_t)
PFN(cuMemGetAllocationPropertiesFromHandle,10020,CUmemAllocationProp*,CUmemGenericAllocationHandle)
PFN(cuStreamBatchMemOp,11070,CUstream,unsigned,CUstreamBatchMemOpParams*,unsigned)
PFN(cuStreamWaitValue32,11070,CUstream,CUdeviceptr,unsigned,unsigned)
PFN(cuStreamWaitValue64,11070,CUstream,CUdeviceptr,uint64_t,unsigned)
PFN(cuStreamWriteValue32,11070,CUstream,CUdeviceptr,unsigned,unsigned)
PFN(cuStreamWriteValue64,11070,CUstream,CUdeviceptr,uint64_t,unsigned)
extern "C" {
cudaError_t cudaMemPoolCreate(cudaMemPool_t*, const cudaMemPoolProps*);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*);
cudaError_t cudaMallocFromPoolAsync_(void**, size_t, cudaMemPool_t, cudaStream_t) __asm__("cudaMallocFromPoolAsync");
cudaError_t cudaUserObjectCreate(cudaUserObject_t*, void*, cudaHostFn_t, unsigned, unsigned);
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned);
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t, cudaStreamCaptureStatus*, unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**, size_t*);
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*, size_t, unsigned);
cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t, cudaEvent_t);
cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t*, const cudaGraphNode_t*, size_t);
cudaError_t cudaGetFuncBySymbol_(cudaFunction_t*, const void*) __asm__("cudaGetFuncBySymbol");
cudaError_t entry_(const char*, void**, unsigned long long, int*) __asm__("cudaGetDriverEntryPoint");
}
inline cudaError_t cudaGetDriverEntryPoint(const char* n, void** f, unsigned long long g){ int s=0; int e=entry_(n,f,g,&s); return e?e:(s?500:0); }
template<class T> inline cudaError_t cudaMallocFromPoolAsync(T** p, size_t n, cudaMemPool_t q, cudaStream_t s){ return cudaMallocFromPoolAsync_((void**)p,n,q,s); }
template<class T> inline cudaError_t cudaGetFuncBySymbol(cudaFunction_t* f, T* k){ return cudaGetFuncBySymbol_(f,(const void*)k); }
extern "C" {
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
cudaError_t cudaGetDevice(int*);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDeviceCount(int*);
cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int);
cudaError_t cudaDeviceGetPCIBusId(char*, int, int);
cudaError_t cudaDeviceCanAccessPeer(int*, int, int);
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned);
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t);
cudaError_t cudaDriverGetVersion(int*);
cudaError_t cudaRuntimeGetVersion(int*);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaMalloc_(void**, size_t) __asm__("cudaMalloc");
cudaError_t cudaFree(void*);
cudaError_t cudaHostAlloc_(void**, size_t, unsigned) __asm__("cudaHostAlloc");
cudaError_t cudaFreeHost(void*);
cudaError_t cudaMallocAsync_(void**, size_t, cudaStream_t) __asm__("cudaMallocAsync");
cudaError_t cudaFreeAsync(void*, cudaStream_t);
cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind);
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemset(void*, int, size_t);
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t);
cudaError_t cudaHostRegister(void*, size_t, unsigned);
cudaError_t cudaHostUnregister(void*);
cudaError_t cudaHostGetDevicePointer(void**, void*, unsigned);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*);
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned);
cudaError_t cudaIpcCloseMemHandle(void*);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes*, const void*);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus*, unsigned long long*);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t cudaEventCreate(cudaEvent_t*);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t, void*);
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);
cudaError_t cudaFuncGetAttributes_(cudaFuncAttributes*, const void*) __asm__("cudaFuncGetAttributes");
cudaError_t cudaFuncSetAttribute_(const void*, cudaFuncAttribute, int) __asm__("cudaFuncSetAttribute");
}
template<class T> inline cudaError_t cudaMalloc(T** p, size_t n){ return cudaMalloc_((void**)p,n); }
template<class T> inline cudaError_t cudaMallocAsync(T** p, size_t n, cudaStream_t s){ return cudaMallocAsync_((void**)p,n,s); }
template<class T> inline cudaError_t cudaHostAlloc(T** p, size_t n, unsigned f){ return cudaHostAlloc_((void**)p,n,f); }
template<class T> inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, T* f){ return cudaFuncGetAttributes_(a,(const void*)f); }
template<class T> inline cudaError_t cudaFuncSetAttribute(T* f, cudaFuncAttribute a, int v){ return cudaFuncSetAttribute_((const void*)f,a,v); }

template<class T> inline cudaError_t cudaMallocAsync(T** p, size_t n, cudaMemPool_t q, cudaStream_t s){ return cudaMallocFromPoolAsync_((void**)p,n,q,s); }
struct cudaDeviceProp { char name[256]; int major, minor; int unifiedAddressing; size_t totalGlobalMem; };
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d){ p->name[0]=0; p->unifiedAddressing=1; p->totalGlobalMem=80ull<<30; cudaDeviceGetAttribute(&p->major, cudaDevAttrComputeCapabilityMajor, d); return cudaDeviceGetAttribute(&p->minor, cudaDevAttrComputeCapabilityMinor, d); }
