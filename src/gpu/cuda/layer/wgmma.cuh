/* SPDX-License-Identifier: Apache-2.0 */
/* What sm_90a has for products of matrices: warpgroup products (wgmma) of operands in shared
 * memory, tiles copied by tensor maps, and the barriers between these. PTX ISA, 9.7.15 (wgmma),
 * 9.7.9.27 (cp.async.bulk.tensor) and 9.7.13.15 (mbarrier).
 */
#ifndef TERN_GPU_CUDA_LAYER_WGMMA_CUH
#define TERN_GPU_CUDA_LAYER_WGMMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

static __device__ uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ void barrier_init(uint64_t *barrier, uint32_t arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
		     "r"(arrivals)
		     : "memory");
}

static __device__ void barrier_arrive(uint64_t *barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
		     : "memory");
}

/* Arrives, and makes the phase wait for so many bytes more. */
static __device__ void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
			     shared_address(barrier)),
		     "r"(bytes)
		     : "memory");
}

static __device__ void barrier_wait(uint64_t *barrier, uint32_t parity)
{
	uint32_t done;

	do
		asm volatile("{\n.reg .pred p;\n"
			     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
			     "selp.u32 %0, 1, 0, p;\n}"
			     : "=r"(done)
			     : "r"(shared_address(barrier)), "r"(parity)
			     : "memory");
	while (!done);
}

static __device__ void copy_tile_2d(void *to, const void *map, uint64_t *barrier, int x, int y)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
		     "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
		     : "memory");
}

static __device__ void copy_tile_4d(
	void *to, const void *map, uint64_t *barrier, int x, int y, int z, int w)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
		     "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
		     : "memory");
}

static __device__ void prefetch_map(const void *map)
{
	asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* The kernel before this one in the stream has ended, and what it wrote is seen. */
static __device__ void wait_for_kernel_before(void)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}

static __device__ void let_next_kernel_start(void)
{
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

template <int REGISTERS> static __device__ void take_registers(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> static __device__ void leave_registers(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* Threads of some whole warps; id 0 is __syncthreads'. */
static __device__ void sync_threads(int id, int threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Registers and shared memory as they are now may be read by products that follow. */
static __device__ void wgmma_begin(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ void wgmma_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int GROUPS> static __device__ void wgmma_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

/* What products wrote is not read ahead of the wait in front of this, and what they add to is not
 * written behind their start: the compiler knows of neither. */
template <int COUNT> static __device__ void hold_registers(float (&d)[COUNT])
{
#pragma unroll
	for (int i = 0; i < COUNT; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

/* Rows of 128 bytes, 1024-aligned groups of 8 rows, swizzled as CU_TENSOR_MAP_SWIZZLE_128B does:
 * bits 0-13 address / 16; 16-29 leading offset, which this swizzle does not read; 32-45 the next
 * 8 rows, 1024 / 16; 62-63 the swizzle, 1 for 128 bytes. Adding 2 goes 32 bytes along the rows.
 * These are the lower 32 bits; the upper ones are the same for all.
 */
static __device__ uint32_t operand_at(const void *p)
{
	return (shared_address(p) >> 4 & 0x3fff) | 1 << 16;
}

/* Four 8 x 8 matrices of 16 bits, of which lanes 8 * i to 8 * i + 7 give the rows of number i: lane
 * t gets 4 bytes of row t / 4 of each. */
static __device__ void load_matrices(uint32_t *to, uint32_t at)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
		     : "r"(at)
		     : "memory");
}

#define OPERAND_HIGH "0x40000040"

/* wgmma<T, N>(d, a, b, add): d [64][N] = a [64][32 bytes] x b [N][32 bytes] transposed, plus d if
 * add. Thread t of the warpgroup holds rows 16 * (t / 32) + t % 32 / 4 (+ 8) and columns
 * 8 * j + t % 4 * 2 (+ 1): d[4 * j + 2 * (+ 8) + (+ 1)].
 */
template <class T, int N> static __device__ void wgmma(float *d, uint32_t a, uint32_t b, int add);

/* clang-format off */
#define WGMMA(N, REGISTERS, A, B, ADD, ...)                                                    \
	template <> __device__ __forceinline__ void wgmma<__nv_fp8_e4m3, N>(                   \
		float *d, uint32_t a, uint32_t b, int add)                                     \
	{                                                                                      \
		asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                  \
			     ".reg .b64 a, b;\nmov.b64 a, {" A ", " OPERAND_HIGH "};\n"        \
			     "mov.b64 b, {" B ", " OPERAND_HIGH "};\n"                         \
			     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 "       \
			     "{" REGISTERS "}, a, b, p, 1, 1;\n}"                              \
			     : __VA_ARGS__ : "r"(a), "r"(b), "r"(add));                        \
	}                                                                                      \
	template <> __device__ __forceinline__ void wgmma<__nv_bfloat16, N>(                   \
		float *d, uint32_t a, uint32_t b, int add)                                     \
	{                                                                                      \
		asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                  \
			     ".reg .b64 a, b;\nmov.b64 a, {" A ", " OPERAND_HIGH "};\n"        \
			     "mov.b64 b, {" B ", " OPERAND_HIGH "};\n"                         \
			     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "       \
			     "{" REGISTERS "}, a, b, p, 1, 1, 0, 0;\n}"                        \
			     : __VA_ARGS__ : "r"(a), "r"(b), "r"(add));                        \
	}
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define R16_0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define R16_1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define R16_2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define R16_3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
WGMMA(8, "%0,%1,%2,%3", "%4", "%5", "%6", D4(0))
WGMMA(16, "%0,%1,%2,%3,%4,%5,%6,%7", "%8", "%9", "%10", D4(0), D4(4))
WGMMA(32, R16_0, "%16", "%17", "%18", D16(0))
WGMMA(64, R16_0 "," R16_1, "%32", "%33", "%34", D16(0), D16(16))
WGMMA(96, R16_0 "," R16_1 "," R16_2, "%48", "%49", "%50", D16(0), D16(16), D16(32))
WGMMA(128, R16_0 "," R16_1 "," R16_2 "," R16_3, "%64", "%65", "%66", D16(0), D16(16), D16(32), D16(48))
/* The same with a, 64 rows of 32 bytes, in registers: thread t has of rows 16 * (t / 32) + t % 32 / 4
 * (+ 8) the bytes 4 * (t % 4) (+ 16) on, a[(+ 8) + 2 * (+ 16)]. */
static __device__ __forceinline__ void wgmma_of_registers(
	float *d, const uint32_t *a, uint32_t b, int add)
{
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
		     ".reg .b64 b;\nmov.b64 b, {%36, " OPERAND_HIGH "};\n"
		     "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
		     "{" R16_0 "," R16_1 "}, {%32, %33, %34, %35}, b, p, 1, 1;\n}"
		     : D16(0), D16(16)
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}
#undef R16_3
#undef R16_2
#undef R16_1
#undef R16_0
#undef D16
#undef D4
#undef WGMMA
/* clang-format on */

#endif
