/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char options_usage[] =
	"Usage: generate [options]             on one rank\n"
	"       tern run -n 4 generate ...     on four: experts are spread over them, prompts too\n"
	"Continues prompts with a Mixture-of-Experts model whose experts exchange tokens through "
	"Tern.\n"
	"\n"
	"  -m, --model DIR       config.json and model.safetensors (default "
	"examples/generate/model)\n"
	"  -p, --prompt TEXT     a prompt; may be repeated\n"
	"  -f, --prompts FILE    one prompt a line; \\n in it is a new line\n"
	"  -n, --tokens N        bytes to generate for each prompt (default 200)\n"
	"  -t, --temperature T   0 always takes the most likely byte (default 0.8)\n"
	"      --top-p P         choose among the most likely bytes that together reach P (default "
	"0.9)\n"
	"  -s, --seed S          of the random choices (default 4)\n"
	"  -d, --dtype TYPE      what travels to experts: fp32, bf16 or fp8 (default bf16)\n"
	"      --combine TYPE    what comes home: fp32 or bf16 (default bf16)\n"
	"      --device WHERE    where rows are dispatched and combined: cpu, cuda (the memory of "
	"GPUs, rank r's of\n"
	"                        number r modulo all) or auto (cuda if all ranks can, else cpu); "
	"default cpu.\n"
	"                        The model's arithmetic is on the CPU always: rows are copied to "
	"the GPUs and back\n"
	"      --layer           the experts, too, where rows are, by Tern (tern_layer.h): no row "
	"comes to the model\n"
	"                        in between; bf16. Sums are in another order, so logits are "
	"compared within 1 %\n"
	"      --elastic[=N]     go on when ranks die: each expert is on N ranks (default 2); "
	"with 1, a dead rank's\n"
	"                        experts are brought to others from backups\n"
	"      --repeat=N        with --elastic: write all texts N times, the same each time\n"
	"      --no-check        do not run all prompts again on one rank to compare\n"
	"      --no-live         do not show texts while they grow\n"
	"  -w, --wait MS         longest wait for another rank (default 30000)\n"
	"      --trace NAME      write the routing to NAME_ids.npy and NAME_weights.npy\n"
	"                        (NAME.RANK_... on several ranks)\n"
	"      --json FILE       write texts and figures\n"
	"  -h, --help            this text\n";

/* Beginnings that the demo model, which has read the King James Bible, Webster's dictionary of 1913
 * and The Devil's Dictionary, continues in their manners. */
static const char *const default_prompts[] = {
	"And it came to pass in those days, that ",
	"Tern, n. (Zool.) Any one of numerous species of ",
	"Then David said unto the men of ",
	"Courage, n. 1. That quality of mind which ",
	"And Jesus answered and said unto them, ",
	"EXPERT, n. A person who ",
	"Blessed is the man that ",
	"Traveler, n. One who ",
};

enum {
	OPT_TOP_P = 256,
	OPT_COMBINE,
	OPT_DEVICE,
	OPT_LAYER,
	OPT_ELASTIC,
	OPT_REPEAT,
	OPT_NO_CHECK,
	OPT_NO_LIVE,
	OPT_TRACE,
	OPT_JSON
};

static const struct option flags[] = {
	{"model", required_argument, NULL, 'm'},
	{"prompt", required_argument, NULL, 'p'},
	{"prompts", required_argument, NULL, 'f'},
	{"tokens", required_argument, NULL, 'n'},
	{"temperature", required_argument, NULL, 't'},
	{"top-p", required_argument, NULL, OPT_TOP_P},
	{"seed", required_argument, NULL, 's'},
	{"dtype", required_argument, NULL, 'd'},
	{"combine", required_argument, NULL, OPT_COMBINE},
	{"device", required_argument, NULL, OPT_DEVICE},
	{"layer", no_argument, NULL, OPT_LAYER},
	{"elastic", optional_argument, NULL, OPT_ELASTIC},
	{"repeat", required_argument, NULL, OPT_REPEAT},
	{"no-check", no_argument, NULL, OPT_NO_CHECK},
	{"no-live", no_argument, NULL, OPT_NO_LIVE},
	{"wait", required_argument, NULL, 'w'},
	{"trace", required_argument, NULL, OPT_TRACE},
	{"json", required_argument, NULL, OPT_JSON},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

static int add_prompt(struct options *options, const char *text, struct fault *fault)
{
	char **prompts =
		realloc(options->prompts, (options->plan.nr_prompts + 1) * sizeof(*prompts));

	if (!prompts)
		return fault_say(fault, "no memory for a prompt");
	options->prompts = prompts;
	prompts[options->plan.nr_prompts] = strdup(text);
	if (!prompts[options->plan.nr_prompts])
		return fault_say(fault, "no memory for a prompt");
	options->plan.nr_prompts++;
	return 0;
}

/* Turns \n and \\ in place into what they stand for. */
static void unescape(char *line)
{
	char *to = line;

	for (const char *from = line; *from; from++) {
		if (from[0] == '\\' && (from[1] == 'n' || from[1] == '\\'))
			*to++ = *++from == 'n' ? '\n' : '\\';
		else
			*to++ = *from;
	}
	*to = 0;
}

static int add_lines(struct options *options, const char *path, struct fault *fault)
{
	FILE *file = fopen(path, "r");
	size_t room = 0;
	char *line = NULL;
	int rc = 0;

	if (!file)
		return fault_say(fault, "%s: %s", path, strerror(errno));
	while (!rc && getline(&line, &room, file) >= 0) {
		line[strcspn(line, "\n")] = 0;
		unescape(line);
		rc = *line ? add_prompt(options, line, fault) : 0;
	}
	free(line);
	fclose(file);
	return rc;
}

static int read_number(const char *flag, const char *text, double min, double max, double *number,
	struct fault *fault)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max))
		return fault_say(fault, "%s is \"%s\": a number from %g to %g is needed", flag,
			text, min, max);
	*number = value;
	return 0;
}

static int read_whole(const char *flag, const char *text, double min, double max, uint64_t *number,
	struct fault *fault)
{
	double value = 0;

	if (read_number(flag, text, min, max, &value, fault))
		return -1;
	*number = (uint64_t)value;
	return value == (double)*number
		       ? 0
		       : fault_say(fault, "%s is \"%s\": a whole number is needed", flag, text);
}

static int read_type(const char *flag, const char *text, enum wire_type most, enum wire_type *type,
	struct fault *fault)
{
	for (int i = WIRE_FP32; i <= (int)most; i++) {
		if (!strcmp(text, wire_name((enum wire_type)i))) {
			*type = (enum wire_type)i;
			return 0;
		}
	}
	return fault_say(fault, "%s is \"%s\": fp32%s is needed", flag, text,
		most == WIRE_FP8 ? ", bf16 or fp8" : " or bf16");
}

static int read_device(const char *text, enum device_choice *device, struct fault *fault)
{
	static const char *const names[] = {
		[DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda", [DEVICE_AUTO] = "auto"};

	for (int i = DEVICE_CPU; i <= DEVICE_AUTO; i++) {
		if (!strcmp(text, names[i])) {
			*device = (enum device_choice)i;
			return 0;
		}
	}
	return fault_say(fault, "--device is \"%s\": cpu, cuda or auto is needed", text);
}

static int take_number(struct options *options, int flag, struct fault *fault)
{
	uint64_t whole = 0;
	double real = 0;
	int rc = 0;

	if (flag == 't' || flag == OPT_TOP_P)
		rc = flag == 't' ? read_number("--temperature", optarg, 0, 100, &real, fault)
				 : read_number("--top-p", optarg, 0.01, 1, &real, fault);
	else
		rc = flag == 'n'   ? read_whole("--tokens", optarg, 1, 1 << 20, &whole, fault)
		     : flag == 's' ? read_whole("--seed", optarg, 0, 0x1p53, &whole, fault)
		     : flag == OPT_REPEAT
			     ? read_whole("--repeat", optarg, 1, 1 << 20, &whole, fault)
			     : read_whole("--wait", optarg, 0, 0x7fffffff, &whole, fault);
	if (rc)
		return rc;
	if (flag == 't')
		options->plan.temperature = (float)real;
	else if (flag == OPT_TOP_P)
		options->plan.top_p = (float)real;
	else if (flag == 'n')
		options->plan.nr_tokens = (uint32_t)whole;
	else if (flag == 's')
		options->plan.seed = whole;
	else if (flag == OPT_REPEAT)
		options->nr_repeats = (uint32_t)whole;
	else
		options->wait_ms = (int)whole;
	return 0;
}

static int read_copies(struct options *options, const char *text, struct fault *fault)
{
	uint64_t copies = 0;

	if (read_whole("--elastic", text, 1, 64, &copies, fault))
		return -1;
	options->nr_copies = (uint32_t)copies;
	options->plan.elastic = true;
	return 0;
}

static int take_flag(struct options *options, int flag, struct fault *fault)
{
	switch (flag) {
	case 'm':
		options->model = optarg;
		return 0;
	case 'p':
		return add_prompt(options, optarg, fault);
	case 'f':
		return add_lines(options, optarg, fault);
	case 'd':
		return read_type("--dtype", optarg, WIRE_FP8, &options->types.dispatch, fault);
	case OPT_COMBINE:
		return read_type("--combine", optarg, WIRE_BF16, &options->types.combine, fault);
	case OPT_DEVICE:
		return read_device(optarg, &options->device, fault);
	case OPT_LAYER:
		options->layer = options->plan.keeps_logits = true;
		return 0;
	case OPT_ELASTIC:
		return read_copies(options, optarg ? optarg : "2", fault);
	case OPT_NO_CHECK:
		options->check = false;
		return 0;
	case OPT_NO_LIVE:
		options->live = false;
		return 0;
	case OPT_TRACE:
		options->trace = optarg;
		return 0;
	case OPT_JSON:
		options->json = optarg;
		return 0;
	case 'h':
		options->help = true;
		return 0;
	case '?':
		return fault_say(fault, "the command line has a flag that is unknown or lacks its "
					"value; --help tells all");
	default:
		return take_number(options, flag, fault);
	}
}

int options_read(int argc, char **argv, struct options *options, struct fault *fault)
{
	int flag;

	*options = (struct options){
		.model = "examples/generate/model",
		.plan = {.nr_tokens = 200, .temperature = 0.8f, .top_p = 0.9f, .seed = 4},
		.types = {.dispatch = WIRE_BF16, .combine = WIRE_BF16},
		.nr_copies = 1,
		.nr_repeats = 1,
		.check = true,
		.live = true,
		.wait_ms = 30000,
	};
	opterr = 0;
	while ((flag = getopt_long(argc, argv, "m:p:f:n:t:s:d:w:h", flags, NULL)) != -1)
		if (take_flag(options, flag, fault))
			return -1;
	if (optind < argc)
		return fault_say(
			fault, "\"%s\" belongs to no flag; a prompt needs --prompt", argv[optind]);
	for (size_t i = 0, none = !options->prompts;
		none && i < sizeof(default_prompts) / sizeof(default_prompts[0]); i++)
		if (add_prompt(options, default_prompts[i], fault))
			return -1;
	options->plan.prompts = options->prompts;
	if (options->layer && (options->plan.elastic || options->types.dispatch != WIRE_BF16 ||
				      options->types.combine != WIRE_BF16))
		return fault_say(fault, "--layer goes with bf16 both ways, and not with --elastic");
	if (options->nr_repeats > 1 && !options->plan.elastic)
		return fault_say(fault, "--repeat needs --elastic");
	return 0;
}

void options_free(struct options *options)
{
	for (uint32_t i = 0; i < options->plan.nr_prompts; i++)
		free(options->prompts[i]);
	free(options->prompts);
}
