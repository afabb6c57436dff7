// What pi gets in its jail besides its own tools: those of clawjail's /mcp, such as a browser in a jail of its own.
//
// The token is read anew for every request, so that a rotation is followed.
import { readFileSync } from "node:fs";
import { Type } from "typebox";

const endpoint = `${process.env.SHELL_URL}/mcp`;
const tokenFile = "/run/hermit/token";

let number = 0;

async function ask(method: string, params: object, signal?: AbortSignal): Promise<any> {
	const response = await fetch(endpoint, {
		method: "POST",
		signal,
		headers: {
			authorization: `Bearer ${readFileSync(tokenFile, "utf8").trim()}`,
			"content-type": "application/json",
			accept: "application/json, text/event-stream",
			"mcp-protocol-version": "2025-06-18",
		},
		body: JSON.stringify({ jsonrpc: "2.0", id: ++number, method, params }),
	});
	const text = await response.text();
	if (!response.ok) throw new Error(`${method}: ${response.status} ${text.slice(0, 500)}`);
	// The answer is JSON, or the same as the data of an event.
	const events = text.split("\n").filter((line) => line.startsWith("data:")).map((line) => JSON.parse(line.slice(5)));
	const answer = text.startsWith("{") ? JSON.parse(text) : events.find((event) => event.id === number || event.result || event.error);
	if (!answer) throw new Error(`${method}: there is no answer`);
	if (answer.error) throw new Error(`${method}: ${answer.error.message}`);
	return answer.result;
}

export default async function (pi: any) {
	const { tools } = await ask("tools/list", {});
	for (const tool of tools) {
		pi.registerTool({
			name: tool.name,
			label: tool.name,
			description: tool.description ?? tool.name,
			parameters: Type.Unsafe(tool.inputSchema),
			async execute(_id: string, args: object, signal?: AbortSignal) {
				const result = await ask("tools/call", { name: tool.name, arguments: args }, signal);
				if (result.isError) throw new Error(result.content?.[0]?.text ?? "the tool failed");
				return { content: result.content, details: {} };
			},
		});
	}
}
