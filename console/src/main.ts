import { mount } from "svelte";
import App from "./App.svelte";
import "./console.css";
import "./figures.css";

mount(App, { target: document.body });
