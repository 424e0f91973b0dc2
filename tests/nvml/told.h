/* What the file named in FAKE_NVML says. Lines of `name = value`; of several that fit the last one counts.
 *
 *   gpus = 8                      how many there are
 *   init = 18                     what nvmlInit returns
 *   hang = nvmlDeviceGetTemperature 3     this call never returns (of GPU 3; without a number, of all)
 *   crash = nvmlDeviceGetName 0   this call ends the process
 *   * temperature = 41            of every GPU
 *   3 temperature = 90            of GPU 3
 *   3 temperature = !3            nvmlReturn_t 3 (not supported) instead of a value
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int trimmed(char *line, char **name, char **value) {
    char *equals = strchr(line, '=');
    if (!equals) return 0;
    *equals = 0;
    *name = line + strspn(line, " \t");
    *value = equals + 1 + strspn(equals + 1, " \t");
    for (char *end = equals - 1; end >= *name && (*end == ' ' || *end == '\t'); end--) *end = 0;
    for (char *end = *value + strlen(*value) - 1; end >= *value && strchr(" \t\r\n", *end); end--) *end = 0;
    return 1;
}

/* The value of `key` of a GPU (-1: of none), or `otherwise`. */
static void told(int gpu, const char *key, const char *otherwise, char *out, size_t size) {
    char line[4096], all[128], one[128], *name, *value;
    snprintf(all, sizeof all, gpu < 0 ? "%s" : "* %s", key);
    snprintf(one, sizeof one, "%d %s", gpu, key);
    snprintf(out, size, "%s", otherwise);
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return;
    while (fgets(line, sizeof line, file))
        if (trimmed(line, &name, &value) && (!strcmp(name, all) || (gpu >= 0 && !strcmp(name, one))))
            snprintf(out, size, "%s", value);
    fclose(file);
}

static long long told_number(int gpu, const char *key, const char *otherwise) {
    char text[256];
    told(gpu, key, otherwise, text, sizeof text);
    return strtoll(text, NULL, 0);
}

static int is_meant(const char *key, const char *call, int gpu) {
    char text[256], name[200] = "";
    int number = -1;
    told(-1, key, "", text, sizeof text);
    if (sscanf(text, "%199s %d", name, &number) < 1 || strcmp(name, call)) return 0;
    return number < 0 || number == gpu;
}

static void entered(const char *call, int gpu) {
    if (is_meant("crash", call, gpu)) abort();
    while (is_meant("hang", call, gpu)) sleep(1);
}
