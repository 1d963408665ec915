// Formulas, a JSON list of strings on standard input → the errors, a JSON list of [number, message] on standard output.
const katex = require("katex");

const formulas = JSON.parse(require("fs").readFileSync(0, "utf8"));
const errors = [];
formulas.forEach((formula, number) => {
  try {
    katex.renderToString(formula, { displayMode: true, throwOnError: true, strict: "error" });
  } catch (error) {
    errors.push([number, error.message]);
  }
});
console.log(JSON.stringify(errors));
