/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define NUMBER_WIDTH 5 /* "  1  " before a line of show_live */

/* ---- texts ----------------------------------------------------------------------------------- */

static uint32_t terminal_width(void)
{
	struct winsize size;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || size.ws_col < 20)
		return 80;
	return size.ws_col;
}

/* Bytes that a terminal would obey become a dot; what is beyond ASCII too, since the model's bytes
 * need not be UTF-8. */
static void put_bytes(const uint8_t *bytes, size_t nr, bool one_line)
{
	for (size_t i = 0; i < nr; i++) {
		bool plain = bytes[i] >= 0x20 && bytes[i] < 0x7f;
		bool line = bytes[i] == '\n';

		putchar(plain || (line && !one_line) ? bytes[i] : line ? ' ' : '.');
	}
}

static const uint8_t *text_of(const struct texts *texts, uint32_t prompt)
{
	return texts->bytes + (size_t)prompt * texts->nr_tokens;
}

/* The last columns of prompt and text together. */
static void show_tail(const char *prompt, const uint8_t *text, uint32_t nr_bytes, uint32_t columns)
{
	size_t prompt_bytes = strlen(prompt), all = prompt_bytes + nr_bytes,
	       skip = all > columns ? all - columns : 0;

	if (skip < prompt_bytes)
		put_bytes((const uint8_t *)prompt + skip, prompt_bytes - skip, true);
	skip = skip > prompt_bytes ? skip - prompt_bytes : 0;
	put_bytes(text + skip, nr_bytes - skip, true);
}

void show_live(const struct options *options, const struct texts *texts, bool first)
{
	uint32_t columns = terminal_width() - NUMBER_WIDTH - 1;

	if (!first)
		printf("\033[%uA", options->plan.nr_prompts);
	for (uint32_t i = 0; i < options->plan.nr_prompts; i++) {
		printf("\033[2K\033[2m%3u\033[0m  ", i + 1);
		show_tail(options->prompts[i], text_of(texts, i), texts->nr_bytes[i], columns);
		putchar('\n');
	}
	fflush(stdout);
}

void clear_live(const struct options *options)
{
	printf("\033[%uA\033[J", options->plan.nr_prompts);
}

void show_where(int nr_ranks, int nr_gpus, const char *why_no_gpu)
{
	const char *plural = nr_ranks > 1 ? "s" : "";

	if (nr_gpus)
		printf("%d rank%s: dispatch and combine in the memory of GPUs (rank r's of GPU r "
		       "modulo %d), the model on the CPU\n\n",
			nr_ranks, plural, nr_gpus);
	else
		printf("%d rank%s: dispatch, combine and the model on the CPU%s%s\n\n", nr_ranks,
			plural, *why_no_gpu ? "; not on GPUs: " : "", why_no_gpu);
	fflush(stdout);
}

static void show_ranks(const uint64_t *set, uint32_t nr, const char *what)
{
	uint32_t told = 0;

	if (!nr)
		return;
	printf("rank%s ", nr > 1 ? "s" : "");
	for (uint32_t r = 0; r < 256; r++)
		if (set[r / 64] >> r % 64 & 1)
			printf("%s%u", told++ ? ", " : "", r);
	printf(" %s; ", what);
}

void show_change(const struct moe_change *change)
{
	show_ranks(change->view.gone, change->view.nr_gone, "died");
	show_ranks(change->view.joined, change->view.nr_joined, "joined");
	printf("%.2f ms later the round was made again, and %u ranks go on",
		(double)change->replayed_ns / 1e6, change->view.nr_alive);
	if (change->brought.nr)
		printf("; %u experts came here in %.2f ms, %u of them from the checkpoint",
			change->brought.nr, (double)change->brought.ns / 1e6,
			change->brought.nr_loaded);
	putchar('\n');
	fflush(stdout);
}

void show_texts(const struct options *options, const struct texts *texts, uint32_t nr_ranks)
{
	bool colour = isatty(STDOUT_FILENO);

	for (uint32_t i = 0; i < options->plan.nr_prompts; i++) {
		printf("--- %u of %u, rank %u ---\n%s", i + 1, options->plan.nr_prompts,
			i % nr_ranks, colour ? "\033[1m" : "");
		put_bytes((const uint8_t *)options->prompts[i], strlen(options->prompts[i]), false);
		fputs(colour ? "\033[0m" : "", stdout);
		put_bytes(text_of(texts, i), texts->nr_bytes[i], false);
		fputs("\n\n", stdout);
	}
	fflush(stdout);
}

/* ---- figures --------------------------------------------------------------------------------- */

static double per_second(uint64_t nr, double seconds)
{
	return seconds > 0 ? (double)nr / seconds : 0;
}

static double share_away(const struct figures *figures)
{
	return figures->tokens ? (double)figures->tokens_away / (double)figures->tokens : 0;
}

static const char *verdict_text(enum verdict verdict)
{
	return verdict == VERDICT_SAME        ? "yes"
	       : verdict == VERDICT_DIFFERENT ? "no"
					      : "not checked";
}

static void show_latency(
	const char *name, const struct latency *latency, const struct figures *figures)
{
	printf("%-30s p50 %.1f us, p99 %.1f us", name, latency->slowest_p50, latency->slowest_p99);
	if (figures->nr_ranks > 1)
		printf(" (slowest rank, which waits for the others; fastest: %.1f and %.1f)",
			latency->fastest_p50, latency->fastest_p99);
	puts(figures->nr_gpus ? "; with copies to and from GPUs" : "");
}

static void show_moved(const struct figures *figures)
{
	if (figures->nr_gpus) {
		puts("bytes moved                    not counted on GPUs");
		return;
	}
	printf("bytes moved                    %.2f MiB to experts, %.2f MiB home\n",
		(double)figures->dispatch_bytes / 0x1p20, (double)figures->combine_bytes / 0x1p20);
	printf("tokens that left their rank    %.1f %%\n", 100 * share_away(figures));
}

void show_figures(
	const struct options *options, const struct figures *figures, enum verdict verdict)
{
	printf("ranks                          %u, %u prompts\n", figures->nr_ranks,
		options->plan.nr_prompts);
	printf("dispatch, combine in           %s, %s\n", wire_name(options->types.dispatch),
		wire_name(options->types.combine));
	printf("prefill                        %.0f tokens/s (%llu tokens)\n",
		per_second(figures->prefill_tokens, figures->prefill_s),
		(unsigned long long)figures->prefill_tokens);
	printf("decode                         %.0f tokens/s (%llu tokens)\n",
		per_second(figures->decode_tokens, figures->decode_s),
		(unsigned long long)figures->decode_tokens);
	if (options->layer) {
		show_latency("dispatch, experts, combine", &figures->dispatch, figures);
	} else {
		show_latency("dispatch, decoding", &figures->dispatch, figures);
		show_latency("combine, decoding", &figures->combine, figures);
	}
	show_moved(figures);
	if (options->layer && verdict != VERDICT_UNKNOWN)
		printf("logits near 1 rank's           %s (which reads these texts: RMS of "
		       "differences over RMS %.4f, at most %g)\n",
			verdict == VERDICT_NEAR ? "yes" : "no", figures->logits_far, LAYER_FAR);
	else
		printf("identical to 1 rank            %s%s\n", verdict_text(verdict),
			verdict == VERDICT_SAME ? " (every byte, and every bit of the logits)"
						: "");
	fflush(stdout);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_json_string(FILE *file, const uint8_t *bytes, size_t nr)
{
	fputc('"', file);
	for (size_t i = 0; i < nr; i++) {
		if (bytes[i] == '"' || bytes[i] == '\\')
			fprintf(file, "\\%c", bytes[i]);
		else if (bytes[i] < 0x20 || bytes[i] >= 0x7f)
			fprintf(file, "\\u%04x", bytes[i]); /* a byte, not a character: Latin-1
							       keeps each apart */
		else
			fputc(bytes[i], file);
	}
	fputc('"', file);
}

static void put_json_texts(
	FILE *file, const struct options *options, const struct texts *texts, uint32_t nr_ranks)
{
	fputs("  \"texts\": [\n", file);
	for (uint32_t i = 0; i < options->plan.nr_prompts; i++) {
		fprintf(file, "    {\"rank\": %u, \"prompt\": ", i % nr_ranks);
		put_json_string(
			file, (const uint8_t *)options->prompts[i], strlen(options->prompts[i]));
		fputs(", \"text\": ", file);
		put_json_string(file, text_of(texts, i), texts->nr_bytes[i]);
		fprintf(file, ", \"logits_fingerprint\": \"%016llx\"}%s\n",
			(unsigned long long)texts->fingerprints[i],
			i + 1 < options->plan.nr_prompts ? "," : "");
	}
	fputs("  ]\n}\n", file);
}

static void put_json_latency(FILE *file, const char *name, const struct latency *latency)
{
	fprintf(file, "  \"%s_us\": {\"slowest_rank_p50\": %.2f, \"slowest_rank_p99\": %.2f, ",
		name, latency->slowest_p50, latency->slowest_p99);
	fprintf(file, "\"fastest_rank_p50\": %.2f, \"fastest_rank_p99\": %.2f},\n",
		latency->fastest_p50, latency->fastest_p99);
}

static void put_json_moved(FILE *file, const struct figures *f)
{
	if (f->nr_gpus)
		fprintf(file, "  \"dispatch_bytes\": null,\n  \"combine_bytes\": null,\n  "
			      "\"share_of_tokens_away\": null,\n");
	else
		fprintf(file,
			"  \"dispatch_bytes\": %llu,\n  \"combine_bytes\": %llu,\n  "
			"\"share_of_tokens_away\": %.4f,\n",
			(unsigned long long)f->dispatch_bytes, (unsigned long long)f->combine_bytes,
			share_away(f));
}

static void put_json(FILE *file, const struct options *options, const struct texts *texts,
	const struct figures *f, enum verdict verdict)
{
	fprintf(file,
		"{\n  \"ranks\": %u,\n  \"dispatch_dtype\": \"%s\",\n  \"combine_dtype\": "
		"\"%s\",\n",
		f->nr_ranks, wire_name(options->types.dispatch), wire_name(options->types.combine));
	fprintf(file, "  \"prefill_tokens\": %llu,\n  \"prefill_tokens_per_s\": %.1f,\n",
		(unsigned long long)f->prefill_tokens, per_second(f->prefill_tokens, f->prefill_s));
	fprintf(file, "  \"decode_tokens\": %llu,\n  \"decode_tokens_per_s\": %.1f,\n",
		(unsigned long long)f->decode_tokens, per_second(f->decode_tokens, f->decode_s));
	put_json_latency(file, "dispatch", &f->dispatch);
	put_json_latency(file, "combine", &f->combine);
	fprintf(file, "  \"device\": \"%s\",\n", f->nr_gpus ? "cuda" : "cpu");
	put_json_moved(file, f);
	if (options->layer)
		fprintf(file, "  \"logits_far_from_one_rank\": %.6f,\n", f->logits_far);
	fprintf(file, "  \"identical_to_one_rank\": %s,\n",
		verdict == VERDICT_SAME        ? "true"
		: verdict == VERDICT_DIFFERENT ? "false"
					       : "null");
	put_json_texts(file, options, texts, f->nr_ranks);
}

int write_json(const char *path, const struct options *options, const struct texts *texts,
	const struct figures *figures, enum verdict verdict, struct fault *fault)
{
	FILE *file = fopen(path, "w");
	bool bad;

	if (!file)
		return fault_say(fault, "%s: %s", path, strerror(errno));
	put_json(file, options, texts, figures, verdict);
	bad = ferror(file);
	bad = fclose(file) || bad;
	return bad ? fault_say(fault, "%s: could not be written", path) : 0;
}
